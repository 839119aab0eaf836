"""A silo of sessions, as small as it can be."""

from __future__ import annotations

from pathlib import Path

from client_service.data.session_files import load_session_shard
from client_service.settings import ClientSettings, client_settings
from shared.method.settings import method_settings
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.sessions.cut import CUTS, divide_sessions
from simulation.sessions.generator import generate_sessions
from simulation.sessions.source import save_session_shard

ITEMS = 60


def write_session_shards(folder: Path, count: int) -> list[Path]:
    """Folders of so many shards of one chain, whose clicks a generator has planted."""
    sessions = generate_sessions(3, sessions=300, items=ITEMS)
    shards = divide_sessions(sessions, CUTS["random"](sessions, count, 0))
    for shard in shards:
        save_session_shard(folder / shard.name, shard)
    return [folder / shard.name for shard in shards]


def session_silo(folder: Path, **own: str) -> ClientSettings:
    """Settings of a silo of sessions, whose shard and state lie in the folder; nobody answers as its aggregator."""
    [shard] = write_session_shards(folder / "shards", 1)
    catalogue = len(load_session_shard(shard).item_ids)
    taught = method_settings("sessions", width=8, batch_size=20, learning_rate=0.02, catalogue=catalogue)
    settings = client_settings(
        name="shop",
        shard=shard,
        task="sessions",
        state_directory=folder / "state",
        aggregator_url="http://127.0.0.1:9",
        strategy="fedavg",
        policy={"strategies": ["fedavg"], "item_tables": True},
        method=taught,
        **own,
    )
    ensure_key_pair(settings.name, settings.state_directory)
    return settings
