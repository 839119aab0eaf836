"""Writes shards anew without their test data, so that a search cannot read them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from client_service.data.interaction_files import FEATURES, load_shard, save_shard
from client_service.data.interactions import build_shard
from client_service.data.node_files import load_node_shard, save_node_shard
from client_service.data.node_graphs import TEST as NODE_TEST
from client_service.data.node_graphs import UNKNOWN, UNLABELLED
from client_service.data.session_files import load_session_shard, save_session_shard
from client_service.data.sessions import TEST
from simulation.progress import step


@step("leaving out test data")
def write_blind_shards(
    hide_test: Callable[[Path, Path], None], shards: Sequence[Path], folder: Path
) -> tuple[Path, ...]:
    """Writes each shard without its test data to `folder`, under its own name.

    hide_test: writes a shard from its path to its new one.
    """
    for path in shards:
        hide_test(path, folder / path.name)
    return tuple(folder / path.name for path in shards)


def hide_test_pairs(path: Path, blind: Path) -> None:
    """Writes a shard without test pairs into the folder `blind`.

    The catalogue keeps the items that occur in test pairs alone, with their metadata, so that validation ranks the same
    candidates by the same text. Raises DataError for an unreadable shard.
    """
    shard = load_shard(path)
    events = shard.events_with_ids().filter(pl.col("split") != "test")
    save_shard(blind, build_shard(shard.name, events, shard.items_with_ids(), ("test pairs left out",)))
    if shard.feature_file is not None:
        shutil.copyfile(shard.feature_file, blind / FEATURES)


def hide_test_sessions(path: Path, blind: Path) -> None:
    """Writes a shard without test sessions into the folder `blind`, with all its items.

    So validation ranks the same items.
    """
    shard = load_session_shard(path)
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


def hide_test_labels(path: Path, blind: Path) -> None:
    """Writes the shard of nodes into the folder `blind`, without labels of test nodes."""
    shard = load_node_shard(path)
    hidden = shard.splits == NODE_TEST
    without = replace(
        shard,
        labels=np.where(hidden, UNKNOWN, shard.labels),
        splits=np.where(hidden, UNLABELLED, shard.splits).astype(np.int8),
        notes=("test labels left out",),
    )
    save_node_shard(blind, without)
