"""Transfer of a trained model's parameters to another shard, by user and item ids.

A parameter either has a row for each user, item or node, or means the same on every shard. Shapes: M users, N items; R
rows of the new model, q width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from client_service.data.events import row_numbers

RowKind = Literal["users", "items", "nodes"]
"""Kind of a parameter's rows; nodes: users, and items after them."""
Int64 = NDArray[np.int64]
MIXER = 0x9E3779B97F4A7C15  # odd: the products of different places are different numbers
NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class ShardRows:
    """Ids of a shard's rows, in their order.

    catalogue: the digest of the list of items that all clients share, "" without one. prints (M,): a fingerprint of
    each user's items.
    """

    users: Sequence[str]
    items: Sequence[str]
    catalogue: str = ""
    prints: Int64 = field(default_factory=NOTHING.copy)


@dataclass(frozen=True)
class MatchedRows:
    """Rows that two shards have in common: in the new one and in the old.

    Both (r,), in the same order.
    """

    new: Int64
    old: Int64


Matched = Mapping[RowKind, MatchedRows]


def fingerprint_users(interactions: sparse.csr_array, places: Int64) -> Int64:
    """Computes a fingerprint of each user's set of items, (M,).

    interactions: (M, N). places (N,): place of each item in a list.
    """
    numbers = (places + 1).astype(np.uint64) * np.uint64(MIXER)
    mixed = (numbers ^ (numbers >> np.uint64(29))) * np.uint64(MIXER)
    found: Int64 = interactions.astype(np.int64) @ (mixed >> np.uint64(1)).astype(np.int64)
    return found


def match_rows(old: ShardRows, new: ShardRows) -> Matched:
    """Finds the users, items and nodes that both shards have."""
    users, items = _match(old.users, new.users), _match(old.items, new.items)
    nodes = MatchedRows(
        np.concatenate([users.new, items.new + len(new.users)]), np.concatenate([users.old, items.old + len(old.users)])
    )
    return {"users": users, "items": items, "nodes": nodes}


def changed_users(old: ShardRows, new: ShardRows, matched: Matched, interactions: sparse.csr_array) -> Int64:
    """Finds users of the new shard who are new or have other items."""
    items, users = matched["items"], matched["users"]
    places = np.arange(len(new.items)) + len(old.items)  # a new item has none of the old places
    places[items.new] = items.old
    changed = np.ones(len(new.users), dtype=bool)
    changed[users.new] = fingerprint_users(interactions, places)[users.new] != old.prints[users.old]
    return np.flatnonzero(changed)


def _match(old: Sequence[str], new: Sequence[str]) -> MatchedRows:
    places = row_numbers(pl.Series(new, dtype=pl.String), pl.Series(old, dtype=pl.String))
    known = np.flatnonzero(places >= 0).astype(np.int64)
    return MatchedRows(known, places[known])


def is_same_model_kind(model: nn.Module, kinds: Mapping[str, RowKind], trained: Mapping[str, Tensor]) -> bool:
    """Tells whether parameters are those of such a model, on any shard."""
    own = dict(model.named_parameters())
    if own.keys() != trained.keys():
        return False
    return all(own[name].ndim == value.ndim for name, value in trained.items()) and all(
        own[name].shape[1:] == trained[name].shape[1:] for name in kinds
    )


def match_model(
    model: nn.Module, kinds: Mapping[str, RowKind], trained: Mapping[str, Tensor], old: ShardRows, new: ShardRows
) -> Matched | None:
    """Finds the rows that both shards have.

    None for another kind of model or another catalogue.
    """
    if old.catalogue != new.catalogue or not is_same_model_kind(model, kinds, trained):
        return None
    return match_rows(old, new)


@torch.no_grad()
def copy_shared(model: nn.Module, kinds: Mapping[str, RowKind], trained: Mapping[str, Tensor]) -> None:
    """Copies the parameters that mean the same on every shard.

    Of those that are longer on one shard, the common entries are copied.
    """
    for name, parameter in model.named_parameters():
        if name not in kinds:
            both = tuple(slice(min(sizes)) for sizes in zip(parameter.shape, trained[name].shape, strict=True))
            parameter[both] = trained[name][both].to(parameter)


@torch.no_grad()
def copy_matched_rows(
    model: nn.Module, kinds: Mapping[str, RowKind], trained: Mapping[str, Tensor], matched: Matched
) -> None:
    """Copies the rows of users and items that both shards have.

    The others stay as they are.
    """
    for name, parameter in model.named_parameters():
        if name in kinds:
            rows = matched[kinds[name]]
            parameter[torch.from_numpy(rows.new)] = trained[name][torch.from_numpy(rows.old)].to(parameter)
