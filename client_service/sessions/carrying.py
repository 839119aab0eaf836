"""A session model in training on a shard, and what was trained on another one -> the model with all that both have."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from client_service.models.carrying import RowKind, ShardRows, are_alike, carry_plain, carry_rows, match_rows
from client_service.sessions.shard import SessionShard
from client_service.sessions.training import SessionTraining
from shared.method.exchange import ITEM_TABLE


def rows_of_sessions(shard: SessionShard) -> ShardRows:
    """Its items: a visit is nobody's."""
    return ShardRows((), shard.item_ids, shard.catalogue)


def carry_sessions(training: SessionTraining, trained: Mapping[str, Tensor], old: ShardRows) -> bool:
    """Take over what was trained on a shard with the rows `old`; False, and nothing changed, where that is no such
    model, or of another catalogue. Items that both shards have keep their rows; the others begin as a run does."""
    new = rows_of_sessions(training.shard)
    kinds: Mapping[str, RowKind] = {} if training.holds_catalogue else {ITEM_TABLE: "items"}
    if old.catalogue != new.catalogue or not are_alike(training.model, kinds, trained):
        return False
    carry_plain(training.model, kinds, trained)
    carry_rows(training.model, kinds, trained, match_rows(old, new))
    return True
