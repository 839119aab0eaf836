"""Shards of sessions that the generator plants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from client_service.data.session_files import load_session_shard
from client_service.data.sessions import SessionShard
from client_service.runtime.device import pin_threads
from shared.method.settings import MethodSettings, method_settings
from simulation.sessions.cut import CUTS, divide_sessions
from simulation.sessions.generator import generate_sessions
from simulation.sessions.source import save_session_shard

ITEMS = 60


@pytest.fixture(autouse=True)
def single_thread() -> None:
    """As a service does: several threads of torch and of linear algebra in one process can wait for each other."""
    pin_threads(1)


@pytest.fixture
def visits(tmp_path: Path) -> Callable[[int], list[Path]]:
    """Folders of so many shards of one chain."""

    def write(count: int) -> list[Path]:
        sessions = generate_sessions(3, sessions=300, items=ITEMS)
        shards = divide_sessions(sessions, CUTS["random"](sessions, count, 0))
        for shard in shards:
            save_session_shard(tmp_path / "shards" / shard.name, shard)
        return [tmp_path / "shards" / shard.name for shard in shards]

    return write


@pytest.fixture
def shop(visits: Callable[[int], list[Path]]) -> SessionShard:
    """One shard."""
    return load_session_shard(visits(1)[0])


@pytest.fixture
def taught() -> MethodSettings:
    """Settings by which small shards are learnt in a few rounds."""
    return method_settings("sessions", width=8, batch_size=20, learning_rate=0.02)
