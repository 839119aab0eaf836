"""A joined client is let in by the aggregator: with real processes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from client_service.settings import client_settings
from shared.method.settings import BasisSettings, MethodSettings, ServerStepSettings
from simulation.cli import app
from simulation.experiments.processes import free_ports
from simulation.joining.invite import write_invitations
from tests.support.serving import serve
from tests.support.small import BEARER, SMALL, small_aggregator

ITEMS = [f"i{number}" for number in range(12)]
BASIS = SMALL.model_copy(
    update={
        "catalogue": len(ITEMS),
        "basis": BasisSettings(kind="iterated", rank=3, words=2, least_silos=4),
        "start": "common",
        "server": "yogi",
        "server_step": ServerStepSettings(rate=0.02, magnitudes="off"),
        "similarity_floor": 1.0,
    }
)
VISITS = MethodSettings(model="srgnn", width=4, catalogue=len(ITEMS), batch_size=100)
AGREED = ("--policy", "common_basis=secure", "--catalogue", "catalogue.txt")


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (f"u{user},i{(user * 5 + item) % 12},{1000 * user + item}\n" for user in range(12) for item in range(6))
    Path("data.csv").write_text("user,item,time\n" + "".join(rows))
    Path("catalogue.txt").write_text("".join(f"{item}\n" for item in sorted(ITEMS)))


@contextmanager
def invited(tmp_path: Path, **settings: Any) -> Iterator[tuple[AggregatorSettings, str]]:
    """An aggregator with these settings, and an invitation of it for `north`, which is the first of three."""
    chosen = small_aggregator(tmp_path / "aggregator", **settings)
    with serve(create_app(chosen)) as url:
        write_invitations(chosen, ["north", "south", "west"], url, tmp_path)
        yield chosen, url


def join(*flags: object) -> Result:
    words = ("join", "north.invite", "--data", "data.csv", *flags)
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"method": BASIS, "secure": True}, AGREED),
        (
            {"method": VISITS, "strategy": "fedavg"},
            ("--policy", "strategies=fedavg", "--policy", "item_tables=true", "--catalogue", "catalogue.txt"),
        ),
    ],
    ids=["a secure federation with a common basis and a server optimiser", "a federation of visits"],
)
def test_a_joined_client_is_let_in_by_the_aggregator(
    tmp_path: Path, settings: dict[str, Any], flags: tuple[str, ...]
) -> None:
    with invited(tmp_path, **settings) as (chosen, url):
        [port] = free_ports(1)
        done = join(*flags, "--port", port, "--detach")
        assert done.exit_code == 0, (done.output, done.exception)
        [pid] = map(int, re.findall(r"until `kill (\d+)`", done.stderr))
        try:
            assert client_settings(Path("north/silo.toml")).method == chosen.method
            assert names_of(url, until=1) == ["north"]  # the client has declared what the aggregator expects
            key = {"Authorization": f"Bearer {Path('north/operator.key').read_text()}"}
            status = httpx.get(f"http://127.0.0.1:{port}/v1/status", headers=key, trust_env=False).json()
            assert status["client"] == "north" and status.get("problem") is None
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def names_of(url: str, until: int) -> list[str]:
    """Who has joined, once there are so many."""
    while len(found := httpx.get(f"{url}/v1/clients", headers=BEARER, trust_env=False).json()) < until:
        time.sleep(0.1)
    return [one["client"] for one in found]
