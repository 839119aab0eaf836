"""A silo whose gate was patched: its own word, its files and its environment each give it away by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit.probes import own_gate
from audit.probes.own_gate import CODE, GATE, WORD
from audit.probes.part import PartLocation
from client_service.boundary import gate_self_test
from client_service.boundary.gate import GateTransport
from client_service.boundary.gate_self_test import CODE_PACKAGES, package_folder
from client_service.settings import client_settings
from shared.method.settings import MethodSettings

if TYPE_CHECKING:
    import httpx
    from conftest import Opened, Silos

    from audit.evidence.evidence import ProbeResult

pytestmark = pytest.mark.anyio

HERE = PartLocation(Path("/"), ())
Asking = Callable[[PartLocation], "object"]


@pytest.fixture
async def client(silos: Silos, small: MethodSettings, opened: Opened, tmp_path: Path) -> object:
    """The silo's own API, of a service that runs."""
    (shard,) = silos(1)
    state = tmp_path / "state"
    said = {"name": shard.name, "shard": shard, "state_directory": state, "method": small, "device": "cpu"}
    async with opened(client_settings(aggregator_url="http://aggregator", **said)) as http:
        yield http


def container(folder: Path) -> PartLocation:
    """A process whose root holds the very code that this one runs."""
    process = folder / "proc" / "7"
    for package in CODE_PACKAGES:
        place = package_folder(package)
        shutil.copytree(place, process / "root" / place.relative_to("/"), ignore=shutil.ignore_patterns("*.pyc"))
    steering = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(own_gate.STEERING)]
    (process / "environ").write_bytes("\0".join(["HOME=/tmp", *steering, ""]).encode())
    return PartLocation(Path("/"), (), process=process)


def failed(probes: list[ProbeResult]) -> dict[tuple[str, str], str]:
    return {(one.kind, one.name): one.observed for one in probes if not one.held}


async def test_a_genuine_client_refuses_everything_and_runs_the_very_code(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    probes = await own_gate.probe_own_gate(client, container(tmp_path))
    assert failed(probes) == {} and {one.kind for one in probes} == {GATE, WORD, CODE}
    assert {one.name for one in probes if one.kind == GATE} == {gate_self_test.CONTROL, *gate_self_test.FORBIDDEN}
    entries = (await client.get("/v1/ledger")).json()["entries"]
    assert not [one for one in entries if one.get("call") == "model"]  # the true ledger hears nothing of it


async def test_a_gate_that_lets_a_header_pass_is_named_by_the_running_client(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GateTransport, "_check_headers", lambda *_: None)
    found = failed(await own_gate.probe_own_gate(client, HERE))
    assert found[GATE, "a header more"] == found[GATE, "ids in the user agent"] == "passed"


async def test_a_gate_that_lets_bodies_pass_is_named_by_the_running_client(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GateTransport, "_open_update_entry", lambda *_: {})
    found = failed(await own_gate.probe_own_gate(client, HERE))
    assert set(found.values()) == {"passed"}
    assert {name for _, name in found} == {
        "an undeclared tensor",
        "foreign dtypes",
        "no tensors at all",
        "ids as a body",
    }


@pytest.mark.parametrize("package", ["client_service", "httpx", "h11"])
async def test_files_of_code_that_were_changed_are_named_whatever_the_client_says(
    client: httpx.AsyncClient, tmp_path: Path, package: str
) -> None:
    here = container(tmp_path)
    changed = here.process / "root" / package_folder(package).relative_to("/") / "__init__.py"
    changed.write_text(changed.read_text(encoding="utf-8") + "\n# sends more\n", encoding="utf-8")
    assert set(failed(await own_gate.probe_own_gate(client, here))) == {(CODE, package)}


async def test_code_that_is_put_before_it_is_named(client: httpx.AsyncClient, tmp_path: Path) -> None:
    here = container(tmp_path)
    (here.process / "environ").write_bytes(b"PYTHONPATH=/state/changed:/opt/code\0LD_PRELOAD=/state/x.so\0")
    place = package_folder("httpx").parent
    (here.process / "root" / place.relative_to("/") / "sitecustomize.py").write_text("import httpx")
    found = failed(await own_gate.probe_own_gate(client, here))
    told = found[CODE, "its environment"]
    assert "LD_PRELOAD" in told and "PYTHONPATH" in told and "/state" not in told
    assert str(place / "sitecustomize.py") in found[CODE, "what runs before it"]


async def test_a_client_that_does_not_answer_has_shown_nothing(client: httpx.AsyncClient) -> None:
    client.base_url = "http://silo/elsewhere"
    found = failed(await own_gate.probe_own_gate(client, HERE))
    assert set(found.values()) == {"no answer"} and {kind for kind, _ in found} == {GATE, WORD}
