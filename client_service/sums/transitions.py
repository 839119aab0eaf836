"""The sum of transitions at a silo of visits: what it adds, and what the sums tell of its own items."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.sessions import TRAIN, Int64, SessionShard
from client_service.sums.silo_sum import (
    FIXED_BYTES,
    Arrays,
    SiloSum,
    Statistics,
    SummedDigests,
    SumRound,
    Sums,
)
from shared.errors import ProtocolError
from shared.method.declaration import Counts
from shared.method.run_memory import SPARSE, Cost
from shared.method.settings import MethodSettings
from shared.sums.sum import UInt32
from shared.sums.transitions import (
    COUNTS,
    ROWS,
    SKETCH,
    TRANSITIONS,
    VISITS,
    WEIGHTS,
    hash_items,
    transition_tensors,
)

BLOCK = 1 << 22  # pairs of items that are looked up at a time
MOST = 1 << 31  # of a sum: beyond it one has wrapped around


@dataclass(frozen=True, eq=False)
class Transitions(Statistics):
    """What visits of all silos tell of the N items of the catalogue.

    visits: that have the item, (N,). counts: of each pair, in UNITs, (N, N); or sketch: the counters, (ROWS, W).
    """

    visits: UInt32
    counts: UInt32 | None = None
    sketch: UInt32 | None = None


def list_transitions(shard: SessionShard) -> tuple[Int64, Int64, Int64]:
    """Of each training visit each ordered pair of items once, at its least distance: both items' rows in the shard, and
    the weight."""
    clicks, starts = shard.split_sessions(TRAIN)
    owners, items = np.repeat(np.arange(len(starts) - 1), np.diff(starts)), len(shard.item_ids)
    found = []
    for distance, weight in enumerate(WEIGHTS, 1):
        inside = owners[distance:] == owners[:-distance]
        before, after = clicks[:-distance][inside], clicks[distance:][inside]
        found.append(
            np.stack([(owners[:-distance][inside] * items + before) * items + after, np.full(len(before), weight)])
        )
    keys, weights = np.concatenate(found, axis=1)
    _, first = np.unique(keys, return_index=True)  # the first of equal ones is the nearest
    pairs = keys[first] % items**2
    return pairs // items, pairs % items, weights[first]


def own_transitions(shard: SessionShard) -> sparse.csr_array:
    """The shard's own part of the sum, over its own N items, (N, N)."""
    before, after, weights = list_transitions(shard)
    size = len(shard.item_ids)
    return sparse.csr_array(sparse.coo_array((weights.astype(np.float32), (before, after)), shape=(size, size)))


def count_transitions(shard: SessionShard, method: MethodSettings) -> Sums:
    """What the silo adds: visits of each item, and its pairs."""
    before, after, weights = list_transitions(shard)
    before, after = shard.places[before], shard.places[after]
    [visits, pairs] = transition_tensors(method)
    found = np.zeros(pairs.shape, np.uint32)
    if pairs.name == COUNTS:
        np.add.at(found, (before, after), weights.astype(np.uint32))
    else:
        for row, counters in enumerate(found):
            first, second = hash_items(visits.shape[0], len(counters), row)
            np.add.at(counters, first[before] ^ second[after], weights.astype(np.uint32))
    return {VISITS: _count_visits(shard, visits.shape[0]), pairs.name: found}


def _count_visits(shard: SessionShard, items: int) -> UInt32:
    clicks, starts = shard.split_sessions(TRAIN)
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    once = np.unique(owners * items + shard.places[clicks])
    return np.bincount(once % items, minlength=items).astype(np.uint32)


def digest_visits(shard: SessionShard) -> SummedDigests:
    """Of the training visits, and of the list of items."""
    clicks, starts = shard.split_sessions(TRAIN)
    content = hashlib.sha256()
    for part in (shard.places[clicks], starts):
        content.update(np.ascontiguousarray(part, dtype="<i8").data)
    return SummedDigests(content.hexdigest(), shard.catalogue)


def finish_transitions(at: SumRound) -> Transitions:
    """The sums as they are. ProtocolError for numbers that have wrapped around."""
    sums = at.sums[at.number]
    if any((value >= MOST).any() for value in sums.values()):
        words = (
            "a silo or the aggregator gave false numbers; sum anew (lpsfed run --renew-basis), or train without them"
        )
        raise ProtocolError(f"expected sums of transitions below {MOST:,}, got larger ones: {words}")
    return Transitions("transitions", sums[VISITS], sums.get(COUNTS), sums.get(SKETCH))


def read_transitions(arrays: Arrays, described: Mapping[str, str]) -> Transitions:
    """Transitions from the disk."""
    del described
    return Transitions("transitions", arrays["visits"], arrays.get("counts"), arrays.get("sketch"))


def shard_transitions(known: Transitions, shard: SessionShard) -> sparse.csr_array:
    """What the sum tells of pairs of the shard's items, (N, N); where the shard's own counts are more, these.

    A silo that joined after the sum was made adds its own.
    """
    places, parts = shard.places, []
    step = max(1, BLOCK // max(1, len(places)))
    for begin in range(0, len(places), step):
        rows = places[begin : begin + step]
        if known.counts is not None:
            found = sparse.csr_array(known.counts[rows][:, places])
        else:
            found = _look_up(known, rows, places)
        parts.append(found.astype(np.float32))
    summed, own = sparse.csr_array(sparse.vstack(parts)), own_transitions(shard)
    return sparse.csr_array(summed.maximum(own) if known.included else summed + own)


def _look_up(known: Transitions, rows: Int64, columns: Int64) -> sparse.csr_array:
    """The least counter of each pair of these items."""
    assert known.sketch is not None
    items, width = len(known.visits), known.sketch.shape[1]
    first, second = hash_items(items, width, 0)
    found = known.sketch[0][first[rows][:, None] ^ second[columns]]
    before, after = np.nonzero(found)
    least: NDArray[np.uint32] = found[before, after]
    for row in range(1, ROWS):
        first, second = hash_items(items, width, row)
        least = np.minimum(least, known.sketch[row][first[rows[before]] ^ second[columns[after]]])
        kept = least > 0
        before, after, least = before[kept], after[kept], least[kept]
    return sparse.csr_array(sparse.coo_array((least, (before, after)), shape=(len(rows), len(columns))))


def cost_transitions(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Of a silo's part and of the sums, which are kept."""
    sent = sum(float(np.prod(one.shape)) for one in transition_tensors(method))
    pairs = 8.0 * 8.0 * len(WEIGHTS) * shard.edges
    words = f"{TRANSITIONS.tells} ({sent:,.0f} numbers)"
    return [Cost("the sums", FIXED_BYTES + 4.0 * sent), Cost(words, 12.0 * sent + pairs, SPARSE * pairs + sent)]


def bytes_of_transitions(method: MethodSettings) -> float:
    """Of looking up pairs, and of the pairs that are found."""
    sent = sum(float(np.prod(one.shape)) for one in transition_tensors(method))
    return 8.0 * sent + 60.0 * BLOCK


def warn_of_rare_visits(method: MethodSettings) -> tuple[str, ...]:
    """A warning of what is told of single visits."""
    least = method.basis.least_pairs
    if least == 1:
        return ("basis.least_pairs = 1: what a single visit has clicked after what is told to all silos",)
    return (
        f"a silo that lies about its own counts reads transitions that fewer than {least} visits have too"
        " (basis.least_pairs)",
    )


TRANSITIONS_SUM = SiloSum(
    declared=TRANSITIONS,
    task="sessions",
    count=count_transitions,
    digests=digest_visits,
    add=lambda at: at.counted,
    finish=finish_transitions,
    load=read_transitions,
    costs=cost_transitions,
    use_bytes=bytes_of_transitions,
    warnings=warn_of_rare_visits,
)
