"""A joined client is let in by the aggregator: with real processes."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.settings import client_settings
from shared.method.settings import MethodSettings
from simulation.ports import free_ports
from tests.support.joining import AGREED, BASIS, ITEMS, invited, write_listed_data
from tests.support.joining import join_north as join
from tests.support.small import BEARER

VISITS = MethodSettings(model="srgnn", width=4, catalogue=len(ITEMS), batch_size=100)


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_listed_data()


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
