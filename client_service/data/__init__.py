"""A silo's data: ids, interactions and sessions, in memory and in files."""

from client_service.data.interaction_files import (
    INTERACTIONS,
    ShardHead,
    change_shard,
    hold_shard,
    load_shard,
    save_shard,
    shard_head,
    write_shard,
)
from client_service.data.interactions import Shard, build_shard, shard_of_matrices

__all__ = [
    "INTERACTIONS",
    "Shard",
    "ShardHead",
    "build_shard",
    "change_shard",
    "hold_shard",
    "load_shard",
    "save_shard",
    "shard_head",
    "shard_of_matrices",
    "write_shard",
]
