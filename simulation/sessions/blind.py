"""A shard of sessions -> the same shard without its test sessions, so that a search cannot read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from client_service.data.session_files import read_session_shard, save_session_shard
from client_service.data.sessions import TEST


def hide_test_sessions(path: Path, blind: Path) -> None:
    """Write the shard anew into the folder `blind`, with all its items: validation ranks the very same ones."""
    shard = read_session_shard(path)
    kept = shard.splits != TEST
    lengths = np.diff(shard.starts)
    without = replace(
        shard,
        clicks=shard.clicks[np.repeat(kept, lengths)],
        starts=np.append(0, np.cumsum(lengths[kept])),
        splits=shard.splits[kept],
        notes=("test sessions left out",),
    )
    save_session_shard(blind, without)
