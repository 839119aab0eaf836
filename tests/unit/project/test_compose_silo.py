"""The compose file of one silo whose aggregator is elsewhere, as a text: its one way out, and its folder."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from client_service.settings import ClientSettings
from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from shared.protocol.signing.invitation import FederationOut, Invitation
from simulation.cli import app
from simulation.deployment.compose_silo import SUBNET, TEMPLATE, SiloCompose, compose_silo

OPEN = FederationOut(strategy="lpsfed", secure=False, method=MethodSettings())
URL = "https://aggregator.example.org"


@pytest.fixture
def invitation(tmp_path: Path) -> Path:
    expires = datetime.now(UTC) + timedelta(days=1)
    made = Invitation(name="north", url=URL, code="c" * 43, expires=expires, aggregator="ab" * 32, federation=OPEN)
    path = tmp_path / "north.invite"
    path.write_text(made.model_dump_json())
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "sales.csv"
    path.write_text("user,item\nu,i\n")
    path.chmod(0o644)
    return path


def read(path: Path) -> Invitation:
    return Invitation.model_validate_json(path.read_text())


def write(*words: object) -> Any:
    return CliRunner().invoke(app, ["compose", "--role", "silo", *map(str, words)])


@pytest.fixture
def composed(invitation: Path, data: Path, tmp_path: Path) -> dict[str, Any]:
    out = tmp_path / "silo.yml"
    written = write("--invitation", invitation, "--data", data, "--folder", tmp_path / "north", "--out", out)
    assert written.exit_code == 0, written.output
    return dict(yaml.safe_load(out.read_text()))


def test_every_service_is_confined(composed: dict[str, Any]) -> None:
    assert set(composed["services"]) == {"join", "client", "exit", "gateway"}
    for name, service in composed["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and service["pull_policy"] == "never", name
        assert service["mem_limit"] and service["pids_limit"] and 0 < service["cpus"] <= 1.0, name
        user, group = map(int, service["user"].split(":"))
        assert user > 0 and (user, group) == ((os.getuid(), os.getgid()) if os.getuid() else (10001, 10001))


def test_the_only_way_out_is_the_exit_s_to_the_aggregator(composed: dict[str, Any]) -> None:
    services, networks = composed["services"], composed["networks"]
    outside = {name for name, one in networks.items() if not one or not one.get("internal")}
    assert outside == {"out", "loopback"}
    assert {name for name, one in services.items() if outside & set(one["networks"])} == {"exit", "gateway"}
    assert services["exit"]["command"] == ["443", "aggregator.example.org:443"]
    place = services["exit"]["networks"]["link"]["ipv4_address"]
    for name in ("join", "client"):
        assert services[name]["extra_hosts"] == [f"aggregator.example.org:{place}"]
        assert services[name]["dns"] == ["198.51.100.1"]  # an address that nobody has
    assert networks["link"]["ipam"]["config"] == [{"subnet": SUBNET}] and "out" not in services["gateway"]["networks"]


def test_applications_ask_loopback_alone(composed: dict[str, Any]) -> None:
    ports = {name: one.get("ports") for name, one in composed["services"].items()}
    assert ports == {"join": None, "client": None, "exit": None, "gateway": ["127.0.0.1:8801:8800"]}


def test_the_data_are_mounted_where_they_are_converted_and_nowhere_else(
    composed: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    mounts = {name: one.get("volumes", []) for name, one in composed["services"].items()}
    own = f"{tmp_path / 'north'}:/silo"
    assert mounts == {"join": [own, f"{data}:/own/sales.csv:ro"], "client": [own], "exit": [], "gateway": []}
    command = composed["services"]["join"]["command"]
    assert command[:4] == ["join", "/silo/invitation", "--data", "/own/sales.csv"] and command[-1] == "--no-start"
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_every_setting_that_it_gives_is_one(composed: dict[str, Any]) -> None:
    given = composed["services"]["client"]["environment"]
    assert {name.removeprefix("LPSFED_CLIENT_").lower() for name in given} <= set(ClientSettings.model_fields)


def test_the_invitation_lies_in_the_silo_s_folder_for_its_owner_alone(
    composed: dict[str, Any], invitation: Path, tmp_path: Path
) -> None:
    inner = tmp_path / "north/invitation"
    assert composed and read(inner) == read(invitation)
    assert inner.stat().st_mode & 0o077 == 0 == (tmp_path / "north").stat().st_mode & 0o077


@pytest.mark.parametrize(
    ("url", "port", "hosts"),
    [
        ("http://aggregator:8800", "8800", None),
        ("http://10.0.0.7", "80", None),
        ("http://host.docker.internal:8899", "8899", ["host.docker.internal:host-gateway"]),
    ],
)
def test_the_exit_leads_to_where_the_invitation_says(
    invitation: Path, data: Path, tmp_path: Path, url: str, port: str, hosts: list[str] | None
) -> None:
    asked = read(invitation).model_copy(update={"url": url})
    text = compose_silo(SiloCompose(tmp_path / "north", data, (10001, 10001), 9000, 3.5, (), True), asked)
    services = yaml.safe_load(text)["services"]
    assert services["exit"]["command"][0] == port and services["exit"].get("extra_hosts") == hosts
    assert services["gateway"]["ports"] == ["127.0.0.1:9000:8800"]
    assert services["join"]["command"][-2:] == ["3.5", "--allow-http"]
    with pytest.raises(SettingsError, match="add --allow-http if the network is trusted"):
        compose_silo(SiloCompose(tmp_path / "north", data, (10001, 10001)), asked)


def test_what_is_missing_or_of_no_use_is_named(invitation: Path, data: Path, tmp_path: Path) -> None:
    refused = {
        ("--data", data): "--invitation: expected the operator's invitation with --role silo",
        ("--invitation", invitation): "--data: expected the silo's own interactions with --role silo",
        ("--invitation", invitation, "--data", tmp_path / "none.csv"): "expected the silo's own interactions, got",
        ("--invitation", invitation, "--data", data, "--subnets", "8.8.8.0/28"): "expected private addresses",
    }
    for words, reason in refused.items():
        found = write(*words)
        assert isinstance(found.exception, SettingsError) and reason in str(found.exception), words
    odd = tmp_path / "a:b.csv"
    odd.write_text("user,item\n")
    assert "expected a path that a mount can name" in str(write("--invitation", invitation, "--data", odd).exception)
    assert not (tmp_path / "north").exists()


def test_data_that_the_containers_may_not_read_are_refused(invitation: Path, data: Path, tmp_path: Path) -> None:
    silo = SiloCompose(tmp_path / "north", data, (data.stat().st_uid + 1, data.stat().st_gid + 1))
    assert TEMPLATE in compose_silo(silo, read(invitation))
    data.chmod(0o640)
    with pytest.raises(SettingsError, match="of the containers can read"):
        compose_silo(silo, read(invitation))
    assert json.loads(invitation.read_text())["name"] == "north"


def test_a_silo_joins_with_the_list_of_items_that_all_share(invitation: Path, data: Path, tmp_path: Path) -> None:
    listed, out = tmp_path / "items.txt", tmp_path / "silo.yml"
    listed.write_text("i\n", encoding="utf-8")
    listed.chmod(0o644)
    words = ("--invitation", invitation, "--data", data, "--folder", tmp_path / "north", "--out", out)
    written = write(*words, "--catalogue", listed)
    assert written.exit_code == 0, written.output
    services = yaml.safe_load(out.read_text())["services"]
    command = services["join"]["command"]
    inside = command[command.index("--catalogue") + 1]
    assert f"{listed}:{inside}:ro" in services["join"]["volumes"]
    refused = write(*words, "--catalogue", tmp_path / "none.txt")
    assert "--catalogue: expected the list of items" in str(refused.exception)
