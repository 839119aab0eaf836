"""A sum of hashed ids finds the items that silos have in common.

No list is merged, and a silo's own list stays private. Each id has a bucket in each of TABLES tables, by a hash that is
keyed by the federation. A silo sends 1 for each bucket in which it has an item, and the number of its training pairs.
The sum says how many silos hold a bucket; what fewer than LEAST_HOLDERS hold is handed out as 0. An item is common if
its buckets are held in every table.

U ids fill a share U / B of B buckets. An item that one silo alone sells is taken for common with a chance of about
(U / B)^2: of 2^20 buckets and 100,000 ids 1 %, where one table of twice the size would take 5 %.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.method.declaration import Part
from shared.method.parameters import Arrays
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import Float64, Shapes, Sum, UInt32

WORD = "item_list"
ITEMS: Part = "items"
"""The part of a run that sums the list of common items."""
HELD, TRAINED = "items.held", "items.pairs"
TABLES = 2
LEAST_HOLDERS = 2
DEVIATIONS = 3.0  # standard deviations by which common buckets must exceed the expected chance matches
BYTES = 8  # of the hash, for each table
MATCH_HINT = "`lpsfed catalogue match` finds items that two silos call differently"


class CommonCount(NamedTuple):
    """Number of common items, and of all silos' training pairs."""

    items: int
    pairs: int


def bucket_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of bucket counts and of the number of training pairs."""
    held = Tensor(HELD, (TABLES, method.basis.buckets), "zeros", dtype="U32")
    return (held, Tensor(TRAINED, (1,), "zeros", dtype="U32"))


def bucket_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns the declared number of buckets, unless it was set by name."""
    buckets = shapes[HELD][1]
    return {} if "buckets" in basis.model_fields_set or buckets == basis.buckets else {"basis.buckets": buckets}


def hide_rare_buckets(method: MethodSettings, sums: Arrays) -> Arrays:
    """Sets buckets to 0 that fewer than LEAST_HOLDERS silos hold.

    All are 0 if no more are held than chance explains: silos with nothing in common have chance matches too.
    """
    del method
    held = np.asarray(sums[HELD])
    kept = held >= LEAST_HOLDERS
    if _chance_explains_matches(held, kept):
        kept = np.zeros_like(kept)
    return {**sums, HELD: np.where(kept, held, np.uint32(0))}


def _chance_explains_matches(held: NDArray[np.uint32], kept: NDArray[np.bool_]) -> bool:
    """Tells whether a table has no more common buckets than chance explains.

    Ids that one silo each has fill common buckets too. Where they are of many silos, their number in a bucket has a
    Poisson distribution, whose mean follows from the buckets with one holder. Ids of few silos match less often:
    there buckets with three holders, of which chance makes few, tell of common items where those with two do not.
    """
    buckets = held.shape[1]
    load = _find_load(np.count_nonzero(held == 1, axis=1) / buckets)
    two = buckets * (1.0 - np.exp(-load) * (1.0 + load))
    three = buckets * (1.0 - np.exp(-load) * (1.0 + load + load**2 / 2.0))
    found = ((kept, two), (kept & (held > LEAST_HOLDERS), three))
    explained = [np.count_nonzero(one, axis=1) <= most + DEVIATIONS * np.sqrt(most) for one, most in found]
    return bool(np.logical_and.reduce(explained).any())


def _find_load(share: Float64) -> Float64:
    """Finds the mean ids a bucket from the share of buckets with exactly one.

    x <= 1 with x e^-x = share.
    """
    low, high = np.zeros_like(share), np.ones_like(share)
    for _ in range(50):
        middle = (low + high) / 2.0
        above = middle * np.exp(-middle) > share
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def hash_ids(ids: Iterable[str], federation: str, buckets: int) -> UInt32:
    """Computes the bucket of each id in each table, (TABLES, M).

    ids: in their one spelling. federation: its aggregator's key. The hashes are the same in every run: with others a
    second sum over the same items would tell more.
    """
    key, size = hashlib.sha256(f"items of {federation}".encode()).digest(), TABLES * BYTES
    drawn = b"".join(hashlib.blake2b(one.encode(), key=key, digest_size=size).digest() for one in ids)
    numbers = np.frombuffer(drawn, dtype="<u8").reshape(-1, TABLES)
    return np.ascontiguousarray((numbers % np.uint64(buckets)).T.astype(np.uint32))


def list_common_buckets(held: NDArray[np.uint32]) -> UInt32:
    """Lists the buckets of the first table with enough holders, most held first."""
    first = np.flatnonzero(held[0] >= LEAST_HOLDERS)
    return first[np.lexsort((first, -held[0][first].astype(np.int64)))].astype(np.uint32)


def count_common(sums: Arrays) -> CommonCount:
    """Counts the common items, without most chance matches, and all training pairs."""
    held = np.asarray(sums[HELD]) >= LEAST_HOLDERS
    return CommonCount(int(held.sum(axis=1).min()), int(np.asarray(sums[TRAINED])[0]))


def describe_guesses(basis: BasisSettings) -> str:
    """Describes what all silos learn by the list of common items."""
    del basis
    return (
        f"which of their own items {LEAST_HOLDERS} silos or more have. No id is revealed, but a guessed id can be"
        f" tested: by silos, whether {LEAST_HOLDERS} silos have it; by the aggregator, whether any silo has it"
    )


COMMON_ITEMS = Sum(
    name="items",
    word=WORD,
    title="the common items",
    statistics="which hashed ids it has",
    tensors=bucket_tensors,
    own_names=frozenset({HELD, TRAINED}),
    sizes=bucket_sizes,
    hand_out=hide_rare_buckets,
    part=ITEMS,
    listed=False,
    words={HELD: "which items it has, as hashed ids", TRAINED: "how many interactions it trains with"},
    disclosure=describe_guesses,
)
