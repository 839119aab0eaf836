"""A silo hashes its ids, and finds its items in the list of common ones.

The list is of buckets, alike in every silo; a silo finds its own items in it and learns no id that it did not have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.id_columns import normalise_ids
from client_service.data.interactions import Shard
from client_service.data.item_matches import NO_MATCH
from client_service.sums.silo_sum import FIXED_BYTES, Arrays, SiloSum, Statistics, SummedDigests, SumRound, Sums
from client_service.sums.statistics import training_digest
from shared.errors import DataError, ProtocolError
from shared.method.declaration import Counts
from shared.method.graph import degrees
from shared.method.run_memory import Cost
from shared.method.settings import MethodSettings
from shared.sums.common_items import (
    COMMON_ITEMS,
    HELD,
    LEAST_HOLDERS,
    MATCH_HINT,
    TABLES,
    TRAINED,
    bucket_tensors,
    hash_ids,
    list_common_buckets,
)
from shared.sums.sum import UInt32

Int64 = NDArray[np.int64]
ARRAYS = ("listed", "confirmed", "pairs_of_all")
MOST_HOLDERS = 1 << 14  # silos: more than a federation has; beyond it a sum has wrapped around
NO_LIST = hashlib.sha256(b"no list of items yet").hexdigest()  # which all silos have alike before this sum


class OwnItems(NamedTuple):
    """A silo's items with a training pair.

    ids: normalised, and matched with the other silos' ids. pairs: number of training pairs.
    """

    ids: tuple[str, ...]
    pairs: int


class FoundPlaces(NamedTuple):
    """Places of a silo's items in the list.

    rows: place of each, (N,), -1: none. hidden: number of items without a place because another own item with more
    training pairs has the same bucket.
    """

    rows: Int64
    hidden: int


class PlacedShard(NamedTuple):
    """Shard with places in the list, and the number of its items without a place."""

    shard: Shard
    hidden: int


@dataclass(frozen=True, eq=False)
class CommonItems(Statistics):
    """The list of common items: buckets that two silos or more hold.

    listed: (n,), of the first table, place by place. confirmed: (m,), of the second table, ascending: an item is common
    if it has a bucket of each. pairs_of_all: (1,), training pairs. federation: the key of its aggregator, by which
    ids are hashed; buckets: of a table.
    """

    federation: str
    buckets: int
    listed: UInt32
    confirmed: UInt32
    pairs_of_all: NDArray[np.int64]

    def metadata(self) -> dict[str, str]:
        """Describes how ids are hashed."""
        return {"kind": self.kind, "federation": self.federation, "buckets": str(self.buckets)}

    def find_places(self, ids: Sequence[str], counts: NDArray[np.float64], places: int) -> FoundPlaces:
        """Finds the place of each item (N,) in the first `places` of the list.

        Of own items in one bucket the one with the most pairs has the place, at a tie the first id. counts: pairs of
        each item.
        """
        spelled = normalise_ids(pl.Series("item", ids, dtype=pl.String))
        first, second = hash_ids(spelled, self.federation, self.buckets)
        order = np.argsort(self.listed, kind="stable")
        found = np.minimum(np.searchsorted(self.listed, first, sorter=order), max(0, len(order) - 1))
        rows = np.full(len(ids), -1, np.int64)
        if len(order):
            near = order[found]
            known = (self.listed[near] == first) & np.isin(second, self.confirmed) & (near < places)
            known &= (spelled != NO_MATCH).to_numpy()  # an own item that the silo has matched with none
            rows[known] = near[known]
        ranked = np.lexsort((np.arange(len(ids)), -counts))
        ranked = ranked[rows[ranked] >= 0]
        kept = ranked[np.unique(rows[ranked], return_index=True)[1]]
        hidden = len(ranked) - len(kept)
        result = np.full(len(ids), -1, np.int64)
        result[kept] = rows[kept]
        return FoundPlaces(result, hidden)

    def place(self, shard: Shard, places: int) -> PlacedShard:
        """Returns the shard with its items' places, and with the list's digest."""
        pairs = sparse.csr_array(shard.train + shard.valid + shard.test)  # however they are split
        found = self.find_places(shard.shared_ids, degrees(pairs)[1], places)
        return PlacedShard(replace(shard, places=found.rows, catalogue=self.digest), found.hidden)


def require_list(items: CommonItems | None, places: int) -> CommonItems:
    """Returns the list that a sum is over; raises DataError without a common item."""
    if items is None:
        raise DataError("expected the list of common items before a sum over it, got none")
    if not min(len(items.listed), len(items.confirmed), places):
        expected = "expected items whose ids two silos or more have"
        raise DataError(f"{expected}, got none: nothing is summed; {MATCH_HINT}")
    return items


def own_items(shard: Shard, method: MethodSettings) -> OwnItems:
    """Collects the items of the silo's training pairs."""
    del method
    used = np.flatnonzero(degrees(shard.train)[1])
    ids = normalise_ids(pl.Series("item", [shard.shared_ids[item] for item in used], dtype=pl.String))
    return OwnItems(tuple(ids.filter(ids != NO_MATCH)), int(sparse.csr_array(shard.train).nnz))


def digest_items(shard: Shard, method: MethodSettings) -> SummedDigests:
    """Computes the digest of the training pairs, which stands for the silo's part.

    The same pairs have the same items.
    """
    del method
    return SummedDigests(training_digest(shard), NO_LIST)


def add_items(at: SumRound) -> Sums:
    """Encodes the silo's part: its items' buckets, and its number of training pairs."""
    own: OwnItems = at.counted
    held = np.zeros((TABLES, at.method.basis.buckets), np.uint32)
    for row, buckets in zip(held, hash_ids(own.ids, at.federation, held.shape[1]), strict=True):
        row[buckets] = 1
    return {HELD: held, TRAINED: np.array([own.pairs], np.uint32)}


def finish_items(at: SumRound) -> CommonItems:
    """Builds the list of common items from the sum.

    Raises ProtocolError for a sum that no silos can have.
    """
    held, pairs = at.sums[at.number][HELD], at.sums[at.number][TRAINED]
    if (held > MOST_HOLDERS).any():
        words = "a silo or the aggregator gave false numbers; sum anew (lpsfed run --renew-basis)"
        raise ProtocolError(f"expected at most {MOST_HOLDERS:,} silos to hold a bucket of items, got more: {words}")
    confirmed = np.flatnonzero(held[1] >= LEAST_HOLDERS).astype(np.uint32)
    listed, pairs_of_all = list_common_buckets(held), pairs.astype(np.int64)
    return CommonItems("items", at.federation, held.shape[1], listed, confirmed, pairs_of_all)


def read_items(arrays: Arrays, metadata: Mapping[str, str]) -> CommonItems:
    """Builds the list from its arrays on disk."""
    listed, confirmed, pairs = (arrays[name] for name in ARRAYS)
    return CommonItems("items", metadata["federation"], int(metadata["buckets"]), listed, confirmed, pairs)


def cost_items(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the cost of the buckets and of hashing the silo's ids."""
    sent = sum(float(np.prod(one.shape)) for one in bucket_tensors(method))
    words = f"{COMMON_ITEMS.statistics} ({sent:,.0f} numbers)"
    return [Cost("the sums", FIXED_BYTES + 4.0 * sent), Cost(words, 24.0 * sent, sent + 2000.0 * shard.items)]


def warn_of_guessed_ids(method: MethodSettings) -> tuple[str, ...]:
    """Warns that a sum of buckets confirms guessed ids."""
    del method
    return (
        f"the list of common items confirms a guessed id if {LEAST_HOLDERS} silos or more have it; the aggregator"
        " sees it even if one silo has it, but not which one",
    )


COMMON_ITEMS_SUM = SiloSum(
    declared=COMMON_ITEMS,
    task="items",
    count=own_items,
    digests=digest_items,
    add=add_items,
    finish=finish_items,
    load=read_items,
    costs=cost_items,
    warnings=warn_of_guessed_ids,
)
