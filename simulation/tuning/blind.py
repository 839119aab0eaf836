"""Shards -> the same shards without their test pairs, so that a search cannot read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from client_service.shard import build_shard, read_shard, save_shard


def write_blind_shards(shards: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Each shard written anew into `folder`, under its own name.

    The catalogue keeps the items that occur in test pairs alone, so that validation ranks the very same candidates.
    Raises DataError for a shard that cannot be read.
    """
    return tuple(_write_blind_shard(path, folder / path.name) for path in shards)


def _write_blind_shard(path: Path, blind: Path) -> Path:
    shard = read_shard(path)
    events = shard.events_with_ids().filter(pl.col("split") != "test")
    items = shard.items_with_ids().select("item")
    save_shard(blind, build_shard(shard.name, events, items, ("test pairs left out",)))
    return blind
