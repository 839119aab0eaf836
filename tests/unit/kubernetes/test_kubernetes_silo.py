"""`lpsfed kubernetes --role silo`: manifests of one silo in a cluster without the aggregator, and their script."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from client_service.data.interaction_files import load_shard
from client_service.settings import client_settings
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.cli import app
from tests.support.given import Silos
from tests.support.questions import LONGEST_SECONDS
from tests.unit.kubernetes.test_manifests import held_to_schema

K8S = Path(__file__).parents[3] / "k8s"
VERSION = "1.31.0"
# Of the calls that the script makes: answers as the API server's would be while the pod waits, and what it is handed.
KUBECTL = """#!/bin/sh
echo "$*" | tr "\\n" " " >> "$PLACE/calls"; echo >> "$PLACE/calls"
case "$*" in
  *initContainerStatuses*) [ -e "$PLACE/shards/north" ] || echo 2026-11-24T00:00:00Z;;
  *status.phase*) [ -e "$PLACE/shards/north" ] && echo Running || echo Pending;;
  *" exec "*) shift $(($# - 1)); LPSFED_CLIENT_NAME=north sh -c "$(echo "$1" | sed "s#/shards#$PLACE/shards#g")";;
esac
"""


@pytest.fixture
def silo(silos: Silos, tmp_path: Path) -> Path:
    """The folder of a silo that has joined, as `lpsfed join` leaves it."""
    folder = tmp_path / "north"
    shutil.copytree(silos(1)[0], folder / "shard")
    ensure_key_pair("north", folder / "state")
    for name in ("application.key", "operator.key"):
        (folder / name).write_text(f"{name}-" + "x1Y2z3" * 6)
    (folder / "members.toml").write_text("# members\n")
    (folder / "aggregator-authority.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    values = {
        "name": "north",
        "shard": str(folder / "shard"),
        "state_directory": str(folder / "state"),
        "application_key_file": str(folder / "application.key"),
        "operator_key_file": str(folder / "operator.key"),
        "aggregator_url": "https://aggregator.example.org",
        "aggregator_authority": str(folder / "aggregator-authority.crt"),
        "members": str(folder / "members.toml"),
    }
    lines = [f'{name} = "{value}"' for name, value in values.items()]
    (folder / "silo.toml").write_text("\n".join([*lines, "[method]", "width = 8", ""]))
    return folder


def write(silo: Path, *words: object, address: str = "203.0.113.10") -> Result:
    flags = ("--role", "silo", "--silo", silo, "--address", address, "--folder", K8S, *words)
    return CliRunner().invoke(app, ["kubernetes", *map(str, flags)])


def render(folder: Path) -> list[dict[str, Any]]:
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not installed: the manifests are not rendered")
    # A cluster's own tools read no file above a kustomization but other kustomizations.
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=LONGEST_SECONDS)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture
def documents(silo: Path) -> list[dict[str, Any]]:
    written = write(silo, "--image", "registry.example.org/lpsfed/client")
    assert written.exit_code == 0, written.output
    assert written.stderr.strip() == f"sh {silo}/kubernetes/apply.sh"
    found = render(silo / "kubernetes")
    for document in found:
        held_to_schema(json.dumps(document), VERSION)
    return found


def named(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(one for one in documents if one["kind"] == kind and one["metadata"]["name"].startswith(name))


def test_everything_lies_in_the_silo_s_namespace_with_its_own_keys(documents: list[dict[str, Any]], silo: Path) -> None:
    own = {one["metadata"].get("namespace") for one in documents if one["kind"] != "Namespace"}
    assert own == {"lpsfed-silo-north"}
    keys = named(documents, "Secret", "client-keys")["data"]
    assert base64.b64decode(keys["application"]).decode() == (silo / "application.key").read_text()
    assert set(keys) == {"application", "operator"}
    assert set(named(documents, "Secret", "signing-key")["data"]) == {"key"}
    settings = named(documents, "ConfigMap", "client")["data"]
    assert settings["LPSFED_CLIENT_NAME"] == "north" and settings["LPSFED_CLIENT_METHOD"] == '{"width":8}'
    assert settings["LPSFED_CLIENT_AGGREGATOR_URL"] == "https://aggregator.example.org"
    assert named(documents, "ConfigMap", "members")["data"] == {"members.toml": "# members\n"}
    assert (silo / "kubernetes").stat().st_mode & 0o077 == 0 == (silo / "kubernetes/key").stat().st_mode & 0o077


def test_the_pod_reaches_the_aggregator_alone_and_waits_for_its_shard(documents: list[dict[str, Any]]) -> None:
    pod = named(documents, "StatefulSet", "client")["spec"]["template"]["spec"]
    assert pod["hostAliases"] == [{"ip": "203.0.113.10", "hostnames": ["aggregator.example.org"]}]
    egress = named(documents, "NetworkPolicy", "to-aggregator")["spec"]["egress"]
    assert egress == [{"to": [{"ipBlock": {"cidr": "203.0.113.10/32"}}], "ports": [{"protocol": "TCP", "port": 443}]}]
    (waiting,) = pod["initContainers"]
    assert waiting["image"] == pod["containers"][0]["image"] == "registry.example.org/lpsfed/client:0.2.0"
    environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert environment["LPSFED_CLIENT_AGGREGATOR_AUTHORITY"] == "/authority/authority.crt"
    mounts = {one["name"] for one in pod["containers"][0]["volumeMounts"]}
    assert {one["name"] for one in pod["volumes"]} | {"state"} == mounts


def test_a_room_has_a_quota_that_holds_what_is_in_it(documents: list[dict[str, Any]]) -> None:
    quota = named(documents, "ResourceQuota", "room")["spec"]["hard"]
    assert quota["services.loadbalancers"] == quota["services.nodeports"] == "0" and int(quota["pods"]) >= 9
    limits = named(documents, "LimitRange", "room")["spec"]["limits"][0]
    assert limits["default"].keys() == limits["defaultRequest"].keys() == {"cpu", "memory", "ephemeral-storage"}


@pytest.fixture
def listed(silo: Path) -> Path:
    """The same with the list of items of a common basis."""
    (silo / "catalogue.txt").write_text("\n".join(load_shard(silo / "shard").item_ids) + "\n", encoding="utf-8")
    text = (silo / "silo.toml").read_text(encoding="utf-8")
    head, method = text.split("[method]")
    lines = (
        f'{head}catalogue = "{silo}/catalogue.txt"\nallowed_origins = ["https://shop.example.org"]',
        f'[method]{method}basis = {{ kind = "exact" }}\n[policy]\ncommon_basis = "open"\n',
    )
    (silo / "silo.toml").write_text("\n".join(lines), encoding="utf-8")
    return silo


def test_a_silo_with_a_list_of_items_has_the_settings_of_its_own_file(
    listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base says of a common basis that there is none, in lines that count more than METHOD."""
    written = write(listed)
    assert written.exit_code == 0, written.output
    given = named(render(listed / "kubernetes"), "ConfigMap", "client")["data"]
    assert given["LPSFED_CLIENT_CATALOGUE"] == "/shards/catalogue.txt"
    for name, value in (given | {"LPSFED_CLIENT_CATALOGUE": str(listed / "catalogue.txt")}).items():
        monkeypatch.setenv(name, value)
    read = client_settings(shard=listed / "shard", state_directory=listed / "state", device="cpu")
    for name in list(given):
        monkeypatch.delenv(name)
    own = client_settings(listed / "silo.toml")
    for name in ("method", "policy", "allowed_origins", "aggregator_url", "secure", "fit_everything"):
        assert getattr(read, name) == getattr(own, name), name


def test_the_script_hands_over_the_list_of_items_before_the_shard(listed: Path, tmp_path: Path) -> None:
    test_the_script_hands_the_shard_over_once(listed, tmp_path, calls_that_hand_over=2)
    text = (tmp_path / "cluster/shards/catalogue.txt").read_text(encoding="utf-8")
    assert text == (listed / "catalogue.txt").read_text(encoding="utf-8")


def test_a_silo_behind_a_proxy_is_told_what_to_do(silo: Path) -> None:
    text = (silo / "silo.toml").read_text(encoding="utf-8")
    (silo / "silo.toml").write_text('outbound_proxy = "http://proxy.example.org:3128"\n' + text, encoding="utf-8")
    refused = write(silo)
    assert "outbound_proxy: expected none" in str(refused.exception)
    assert "proxy.example.org" not in str(refused.exception)


def test_the_script_hands_the_shard_over_once(silo: Path, tmp_path: Path, calls_that_hand_over: int = 1) -> None:
    assert write(silo).exit_code == 0
    program = tmp_path / "bin/kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    place = tmp_path / "cluster"
    (place / "shards").mkdir(parents=True)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PLACE": str(place)}
    for _ in range(2):
        script = ["sh", str(silo / "kubernetes/apply.sh")]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS)
        assert done.returncode == 0, done.stderr
    calls = (place / "calls").read_text().splitlines()
    assert load_shard(place / "shards/north").digest == load_shard(silo / "shard").digest
    assert (
        sum(" exec " in call for call in calls) == calls_that_hand_over and sum("apply" in call for call in calls) == 2
    )
    assert all("--namespace lpsfed-silo-north" in call for call in calls if "apply --kustomize" not in call)
    assert {path.name for path in (place / "shards").iterdir()} - {"catalogue.txt"} == {"north"}


def test_what_is_of_no_use_is_named(silo: Path, tmp_path: Path) -> None:
    assert "expected the aggregator's IP address, got somewhere" in str(write(silo, address="somewhere").exception)
    assert "--silo: expected the folder of a silo" in str(
        CliRunner().invoke(app, ["kubernetes", "--role", "silo", "--address", "203.0.113.10"]).exception
    )
    assert "expected the project's k8s/" in str(write(silo, "--folder", tmp_path).exception)
    lines = (silo / "silo.toml").read_text().splitlines()
    text = "\n".join(line for line in lines if "authority" not in line)
    for url in ("http://aggregator.example.org", "https://aggregator.example.org:8800"):
        (silo / "silo.toml").write_text(text.replace("https://aggregator.example.org", url))
        assert "expected https://NAME, at port 443" in str(write(silo).exception)
    assert not (silo / "kubernetes").exists()
