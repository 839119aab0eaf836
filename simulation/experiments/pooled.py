"""Pools several shards to one, and restricts its lists to each silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.ranking import TopItems
from client_service.models.ranker import Rows


@dataclass(frozen=True, eq=False)
class ClientSlice:
    """One client of the pooled shard, with the rows of its users and items."""

    shard: Shard
    users: Rows
    items: Rows

    @property
    def client(self) -> str:
        """Client's name."""
        return self.shard.name

    def restrict_lists(self, whole: TopItems, count: int) -> TopItems:
        """Restricts lists over all `count` items to this client's items, in its row numbers."""
        outside = np.ones(count, dtype=bool)
        outside[self.items] = False
        back = np.full(count + 1, -1, dtype=np.int64)  # the last place answers for -1: no more items
        back[self.items] = np.arange(len(self.items))

        def restricted_top(rows: Rows, seen: sparse.csr_array, k: int) -> Rows:
            left_out = np.tile(outside, (len(rows), 1))
            left_out[np.repeat(np.arange(len(rows)), np.diff(seen.indptr)), self.items[seen.indices]] = True
            return back[whole(self.users[rows], sparse.csr_array(left_out), k)]

        return restricted_top


def pool_items(shards: Sequence[Shard]) -> tuple[str, ...]:
    """Returns the ids of all silos' items, sorted."""
    return tuple(sorted({item for shard in shards for item in shard.item_ids}))


def pool_shards(shards: Sequence[Shard]) -> tuple[Shard, list[ClientSlice]]:
    """Pools all silos' data to one shard.

    Items of one id are one item, users of one id in two silos are two.
    """
    items = pool_items(shards)
    ends = np.cumsum([len(shard.user_ids) for shard in shards])
    slices = [
        ClientSlice(shard, np.arange(end - len(shard.user_ids), end), sorted_places(items, shard.item_ids))
        for shard, end in zip(shards, ends, strict=True)
    ]
    users = [f"{shard.name}/{user}" for shard in shards for user in shard.user_ids]
    matrices = [
        _stack_rows([getattr(one.shard, split) for one in slices], slices, len(items))
        for split in ("train", "valid", "test")
    ]
    return build_shard_from_matrices("pooled", users, items, matrices), slices


def sorted_places(all_ids: Sequence[str], ids: Sequence[str]) -> Rows:
    """Returns the place of each of these ids among all ids, which are sorted."""
    return np.searchsorted(np.array(all_ids), np.array(ids)).astype(np.int64)


def _stack_rows(parts: Sequence[sparse.csr_array], slices: Sequence[ClientSlice], count: int) -> sparse.csr_array:
    """Stacks the silos' matrices (M_c, N_c), with columns of the pooled items."""
    moved = [
        sparse.csr_array((part.data, one.items[part.indices], part.indptr), shape=(part.shape[0], count))
        for part, one in zip(parts, slices, strict=True)
    ]
    return sparse.csr_array(sparse.vstack(moved, format="csr"))
