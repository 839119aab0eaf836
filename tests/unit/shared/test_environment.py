"""A variable that no setting reads is refused, unless it is one that Kubernetes puts there by itself."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from pydantic import BaseModel, Field
from pydantic_settings import SettingsConfigDict

from aggregator_service.settings import aggregator_settings
from client_service.settings import client_settings
from shared.errors import SettingsError
from shared.web.environment import EnvironmentSettings, read_settings


class Inner(BaseModel):
    width: int = 1


class Some(EnvironmentSettings):
    model_config = SettingsConfigDict(env_prefix="LPSFED_SOME_", env_nested_delimiter="__", extra="forbid")

    aggregator_url: str = "http://one"
    port: int = 8801
    serving_port: int | None = None
    method: Inner = Field(Inner())


def test_a_misspelt_variable_is_named_with_the_one_that_was_meant_and_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LPSFED_SOME_AGGREGATER_URL", "personal-detail")
    with pytest.raises(SettingsError) as raised:
        read_settings(Some, {})
    assert str(raised.value) == (
        "LPSFED_SOME_AGGREGATER_URL: expected the name of a setting, got an unknown name; "
        "likely LPSFED_SOME_AGGREGATOR_URL"
    )


@pytest.mark.parametrize("name", ["COLOUR", "METHODS__WIDTH", "THE_PORT", "lpsfed_some_colour"])
def test_what_is_like_no_setting_is_named_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name if name.islower() else f"LPSFED_SOME_{name}", "8801")
    with pytest.raises(SettingsError, match=rf"{name}: expected the name of a setting, got an unknown name"):
        read_settings(Some, {})


def test_settings_nested_ones_and_what_is_of_others_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPSFED_SOME_METHOD__WIDTH", "3")
    monkeypatch.setenv("lpsfed_some_port", "4")
    monkeypatch.setenv("LPSFED_SOMETHING", "else")
    found = read_settings(Some, {})
    assert (found.method.width, found.port) == (3, 4)


LINKS = {
    "PORT": "tcp://10.0.0.7:8801",
    "SERVICE_HOST": "10.0.0.7",
    "SERVICE_PORT": "8801",
    "SERVICE_PORT_HTTP": "8801",
    "PORT_8801_TCP": "tcp://10.0.0.7:8801",
    "PORT_8801_TCP_PROTO": "tcp",
    "PORT_8801_TCP_PORT": "8801",
    "PORT_8801_TCP_ADDR": "10.0.0.7",
    "SERVING_PORT": "tcp://[fd00::7]:8801",  # of a service lpsfed-client-serving
    "HOST_SERVICE_HOST": "10.0.0.7",
    "HOST_PORT": "udp://10.0.0.7:8801",
    "METHOD__WIDTH_PORT": "tcp://10.0.0.7:1",
    "EAST_SERVICE_HOST": "10.0.0.8",
    "EAST_SERVICE_PORT": "8801",
    "EAST_PORT": "tcp://10.0.0.8:8801",
    "EAST_PORT_8801_TCP": "tcp://10.0.0.8:8801",
}


def test_what_kubernetes_tells_of_services_is_no_misspelt_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LINKS.items():
        monkeypatch.setenv(f"LPSFED_SOME_{name}", value)
    found = read_settings(Some, {})
    assert (found.port, found.serving_port, found.method.width) == (8801, None, 1)
    monkeypatch.setenv("LPSFED_SOME_PORT", "8811")
    monkeypatch.setenv("LPSFED_SOME_SERVING_PORT", "8812")
    found = read_settings(Some, {})
    assert (found.port, found.serving_port) == (8811, 8812)


def test_both_services_ignore_the_variables_of_services_with_their_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The port of a client's file counts, because the variable is none of its settings."""
    for role in ("CLIENT", "AGGREGATOR"):
        for name, value in LINKS.items():
            monkeypatch.setenv(f"LPSFED_{role}_{name}", value)
    file = tmp_path / "silo.toml"
    file.write_text("port = 8899\n")
    client = client_settings(file, name="east", shard="/shard", state_directory="/state")
    assert client.port == 8899
    assert client_settings(name="east", shard="/shard", state_directory="/state").port == 8801
    assert aggregator_settings(state_directory="/state", operator_token=secrets.token_hex(32)).port == 8800
    monkeypatch.setenv("LPSFED_CLIENT_PORT", "8877")
    assert client_settings(file, name="east", shard="/shard", state_directory="/state").port == 8877


def test_what_is_no_address_of_a_service_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPSFED_SOME_PORT", "http://10.0.0.7")
    with pytest.raises(SettingsError, match=r"port: expected a whole number, got text of 15 characters$"):
        read_settings(Some, {})


def test_both_services_refuse_what_they_would_ignore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPSFED_CLIENT_AGGREGATER_URL", "http://aggregator:8800")
    monkeypatch.setenv("LPSFED_AGGREGATOR_STATE_DIR", "/state")
    with pytest.raises(SettingsError, match="likely LPSFED_CLIENT_AGGREGATOR_URL"):
        client_settings(name="east", shard="/shard", state_directory="/state")
    with pytest.raises(SettingsError, match="likely LPSFED_AGGREGATOR_STATE_DIRECTORY"):
        aggregator_settings(state_directory="/state", operator_token="t" * 32)
