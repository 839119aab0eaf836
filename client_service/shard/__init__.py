"""One silo's data: read, written, changed; and the Shard that all of the client works with."""

from client_service.shard.shard import Shard, build_shard, shard_of_matrices
from client_service.shard.storage import (
    INTERACTIONS,
    ShardHead,
    change_shard,
    hold_shard,
    read_shard,
    save_shard,
    shard_head,
    write_shard,
)

__all__ = [
    "INTERACTIONS",
    "Shard",
    "ShardHead",
    "build_shard",
    "change_shard",
    "hold_shard",
    "read_shard",
    "save_shard",
    "shard_head",
    "shard_of_matrices",
    "write_shard",
]
