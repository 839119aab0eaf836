"""`lpsfed refresh` and `lpsfed models` against a client on a real socket."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from client_service.app import create_app
from client_service.data.files import lock_folder
from client_service.settings import client_settings
from lpsfed import Client, Interaction
from shared.errors import FederationError, SettingsError, UnavailableError
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.cli import app
from tests.support.federation import Unreachable
from tests.support.given import Silos
from tests.support.kept import keep_first_model
from tests.support.serving import serve
from tests.support.small import small_client

OPERATOR, APPLICATION = "zYxWvUt9876543210-zYxWvUt9876543210", "AbCdEfGh0123456789-AbCdEfGh0123456789"


@pytest.fixture
def shard(silos: Silos) -> Path:
    return silos(1)[0]


@pytest.fixture
def silo(shard: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a client with the models of two runs."""
    keys = {"application_key": APPLICATION, "operator_key": OPERATOR}
    plain = small_client(shard, tmp_path)
    for run in ("run-1", "run-2"):
        keep_first_model(plain, run)
    ensure_key_pair(plain.name, plain.state_directory)
    (tmp_path / "operator.key").write_text(OPERATOR)
    settings = client_settings(**{**dict(plain), **keys})
    with serve(create_app(settings, Unreachable()), settings) as url:
        _wait_for_model(url, tmp_path)
        yield url


def _wait_for_model(silo: str, tmp_path: Path) -> None:
    """The port answers before the model is read."""
    for _ in range(600):
        if any(one["served"] for one in json.loads(ask(silo, tmp_path, "models", "--json").stdout)["models"]):
            return
        time.sleep(0.05)
    raise TimeoutError("expected a model that answers, got none in 30 s")


def ask(silo: str, tmp_path: Path, *words: str) -> Result:
    flags = ("--client-url", silo, "--operator-key-file", str(tmp_path / "operator.key"))
    return CliRunner().invoke(app, [*words, *flags])


def test_a_refresh_is_waited_for_and_told(silo: str, tmp_path: Path) -> None:
    assert "the shard is unchanged" in ask(silo, tmp_path, "refresh").stdout
    with Client(silo, APPLICATION) as application:
        application.send_interactions([Interaction("new", "item-00")])
        told = ask(silo, tmp_path, "refresh", "--json")
        assert told.exit_code == 0 and json.loads(told.stdout)["changed"] is True
        answer = application.recommend("new")
    assert (answer.model, answer.fallback) == ("refresh.1", None)


def test_a_refresh_that_fails_ends_with_1_and_why(silo: str, shard: Path, tmp_path: Path) -> None:
    with lock_folder(shard):
        failed = ask(silo, tmp_path, "refresh")
    assert failed.exit_code == 1 and "nobody else is changing" in str(failed.exception)


def test_models_are_listed_and_an_earlier_one_is_served(silo: str, tmp_path: Path) -> None:
    lines = ask(silo, tmp_path, "models").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["*", "run-1.0"] and lines[0].split()[1] == "run-2.0"
    chosen = json.loads(ask(silo, tmp_path, "models", "--serve", "run-1.0", "--json").stdout)["models"]
    assert [(one["version"], one["served"]) for one in chosen] == [("run-1.0", True), ("run-2.0", False)]
    odd = ask(silo, tmp_path, "models", "--serve", "run-2.0/serve?x=1#")  # no part of it is a path or a query
    assert odd.exit_code == 1 and "expected the version of a kept model" in str(odd.exception)
    refused = ask(silo, tmp_path, "models", "--serve", "run-7.0")
    assert refused.exit_code == 1 and "expected the version of a kept model" in str(refused.exception)


def test_address_and_operator_key_are_those_of_the_silo_s_settings(
    silo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, key = silo.rpartition(":")[2], tmp_path / "operator.key"
    (tmp_path / "silo.toml").write_text(f'port = {port}\noperator_key_file = "{key}"\n')
    for words in (["models"], ["refresh"], ["doctor", "--port", "1", "--json"]):
        done = CliRunner().invoke(app, [*words, "--silo", str(tmp_path / "silo.toml")])
        assert done.exit_code == 0 or (words[0] == "doctor" and '"client settings"' in done.stdout), done.output
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["models"]).exit_code == 0
    (tmp_path / "silo.toml").unlink()
    refused = CliRunner().invoke(app, ["models"])
    assert isinstance(refused.exception, SettingsError) and "or --operator-key-file, got neither" in str(
        refused.exception
    )


def test_nobody_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpsfed.client.time.sleep", lambda _: None)
    (tmp_path / "operator.key").write_text(OPERATOR)
    refused = ask("http://127.0.0.1:1", tmp_path, "models")
    assert refused.exit_code == 1 and isinstance(refused.exception, UnavailableError)
    assert "http://127.0.0.1:1: GET /v1/models: expected an answer within 5 attempts, got ConnectError" in str(
        refused.exception
    )
    assert "nothing listens there: start the silo, or give" in str(refused.exception)


def test_lists_without_settings_and_key_name_the_address_and_the_options(
    silo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpsfed.client.time.sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    absent = CliRunner().invoke(app, ["recommend", "u", "--client-url", "http://127.0.0.1:1"])
    assert "http://127.0.0.1:1: " in str(absent.exception) and "nothing listens there" in str(absent.exception)
    assert "--silo NAME/silo.toml, or --client-url and --application-key-file" in str(absent.exception)
    refused = CliRunner().invoke(app, ["recommend", "u", "--client-url", silo])
    assert refused.exit_code == 1 and f"{silo}: " in str(refused.exception)
    assert "--application-key-file names the key's file" in str(refused.exception)


@pytest.mark.parametrize("words", [["refresh"], ["models"]])
def test_what_is_no_key_or_no_address_is_named(tmp_path: Path, words: list[str]) -> None:
    missing = ask("http://127.0.0.1:1", tmp_path, *words)
    assert isinstance(missing.exception, SettingsError) and "operator.key: expected a file" in str(missing.exception)
    (tmp_path / "operator.key").write_text(OPERATOR)
    wrong = ask("silo:8801", tmp_path, *words)
    assert isinstance(wrong.exception, SettingsError) and "expected http://HOST:PORT" in str(wrong.exception)
    none = ask("https://127.0.0.1:1", tmp_path, *words, "--ca", str(tmp_path / "none.crt"))
    assert isinstance(none.exception, SettingsError) and "none.crt" in str(none.exception)


def test_another_key_is_refused_in_words(silo: str, tmp_path: Path) -> None:
    (tmp_path / "operator.key").write_text(APPLICATION)
    refused = ask(silo, tmp_path, "models")
    assert isinstance(refused.exception, FederationError)
    assert "403 expected the operator's key, got the application's" in str(refused.exception)


def test_a_run_asks_the_aggregator_of_the_silo_s_settings(tmp_path: Path) -> None:
    (tmp_path / "silo.toml").write_text('name = "north"\naggregator_url = "http://127.0.0.1:1"\n')
    (tmp_path / "operator.token").write_text("t" * 32)
    words = ["run", "--operator-token-file", str(tmp_path / "operator.token"), "--wait-seconds", "0"]
    refused = CliRunner().invoke(app, [*words, "--silo", str(tmp_path / "silo.toml")])
    assert "http://127.0.0.1:1: expected the aggregator" in str(refused.exception)
