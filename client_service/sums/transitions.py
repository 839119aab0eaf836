"""Sum of transitions at a silo of visits: its part, and its items' counts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from client_service.data.digests import encode_list
from client_service.data.prefixes import Int64
from client_service.data.sessions import TRAIN, SessionShard
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
    PAIRS,
    ROWS,
    SKETCH,
    TRANSITIONS,
    UNIT,
    VISITS,
    WEIGHTS,
    expected_strays,
    hash_items,
    transition_tensors,
)

BLOCK = 1 << 18  # pairs of items that are looked up at a time
FILTERS = 3  # rows of counters that leave out most pairs that do not occur
MOST = 1 << 31  # of a sum: beyond it one has wrapped around


@dataclass(frozen=True, eq=False)
class Transitions(Statistics):
    """Transitions between the N items of the catalogue, summed over visits of all silos.

    visits: that have the item, (N,). counts: of each pair, in UNITs, (N, N); or sketch: the counters, (ROWS, W).
    """

    visits: UInt32
    counts: UInt32 | None = None
    sketch: UInt32 | None = None

    def hashes(self, row: int) -> tuple[UInt32, UInt32]:
        """Returns the items' first and second hashes in a row of the sketch."""
        assert self.sketch is not None
        return hash_items(len(self.visits), self.sketch.shape[1], row)


def list_transitions(shard: SessionShard, weights: Sequence[int] = WEIGHTS) -> tuple[Int64, Int64, Int64]:
    """Lists each ordered pair of items of each training visit once, at its least distance.

    Returns both items' rows in the shard, and the weight.
    """
    clicks, starts = shard.split_sessions(TRAIN)
    owners, items = np.repeat(np.arange(len(starts) - 1), np.diff(starts)), len(shard.item_ids)
    found = []
    for distance, weight in enumerate(weights, 1):
        inside = owners[distance:] == owners[:-distance]
        before, after = clicks[:-distance][inside], clicks[distance:][inside]
        found.append(
            np.stack([(owners[:-distance][inside] * items + before) * items + after, np.full(len(before), weight)])
        )
    keys, added = np.concatenate(found, axis=1)
    _, first = np.unique(keys, return_index=True)  # the first of equal ones is the nearest
    pairs = keys[first] % items**2
    return pairs // items, pairs % items, added[first]


def own_transitions(shard: SessionShard, weights: Sequence[int] = WEIGHTS) -> sparse.csr_array:
    """Counts the shard's own transitions between its N items, (N, N).

    weights: by distance; by default those of the sum.
    """
    before, after, added = list_transitions(shard, weights)
    size = len(shard.item_ids)
    return sparse.csr_array(sparse.coo_array((added.astype(np.float32), (before, after)), shape=(size, size)))


def count_transitions(shard: SessionShard, method: MethodSettings) -> Sums:
    """Encodes the silo's part: visits of each item, and weighted pairs."""
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


def digest_visits(shard: SessionShard, method: MethodSettings) -> SummedDigests:
    """Computes digests of the training visits, the same in every list, and of the list."""
    del method
    clicks, starts = shard.split_sessions(TRAIN)
    used, rows = np.unique(clicks, return_inverse=True)
    content = hashlib.sha256(encode_list([shard.item_ids[item] for item in used]))
    for part in (rows, starts):
        content.update(np.ascontiguousarray(part, dtype="<i8").data)
    return SummedDigests(content.hexdigest(), shard.catalogue)


def finish_transitions(at: SumRound) -> Transitions:
    """Returns the sums; raises ProtocolError for numbers that have wrapped around."""
    sums = at.sums[at.number]
    if any((value >= MOST).any() for value in sums.values()):
        words = (
            "a silo or the aggregator gave false numbers; sum anew (lpsfed run --renew-basis), or train without them"
        )
        raise ProtocolError(f"expected sums of transitions below {MOST:,}, got larger ones: {words}")
    return Transitions("transitions", sums[VISITS], sums.get(COUNTS), sums.get(SKETCH))


def read_transitions(arrays: Arrays, metadata: Mapping[str, str]) -> Transitions:
    """Reads transitions from the disk."""
    del metadata
    return Transitions("transitions", arrays["visits"], arrays.get("counts"), arrays.get("sketch"))


def shard_transitions(known: Transitions, shard: SessionShard) -> sparse.csr_array:
    """Looks up the summed transitions between the shard's items, (N, N).

    The silo's own count counts where it is larger. A silo that joined after the sum was made adds its own.
    """
    shown = np.flatnonzero(known.visits[shard.places] > 0)  # no pair of the others has been handed out
    before, after, least = _look_up(known, shard.places[shown])
    most = UNIT * np.minimum(known.visits[shard.places[shown[before]]], known.visits[shard.places[shown[after]]])
    told = np.minimum(least, most).astype(np.float32)  # a visit without both items adds nothing to a pair
    size = len(shard.places)
    found = sparse.csr_array(sparse.coo_array((told, (shown[before], shown[after])), shape=(size, size)))
    own = own_transitions(shard)
    return sparse.csr_array(found.maximum(own) if known.included else found + own)


def _look_up(known: Transitions, places: Int64) -> tuple[Int64, Int64, UInt32]:
    """Looks up the pairs of these items that occur, by their positions, and their counts."""
    if known.counts is not None:
        before, after = np.nonzero(known.counts[np.ix_(places, places)])
        return before, after, known.counts[places[before], places[after]]
    assert known.sketch is not None
    hashes = [[one[places].astype(np.int64) for one in known.hashes(row)] for row in range(ROWS)]
    occurs = [counters > 0 for counters in known.sketch[:FILTERS]]  # a byte each: they fit a processor's cache
    order = np.argsort(hashes[0][1])  # neighbours in the order have neighbouring counters
    seconds = [second[order] for _, second in hashes[:FILTERS]]
    step, found = max(1, BLOCK // max(1, len(places))), [np.zeros((2, 0), np.int64)]
    for begin in range(0, len(places), step):
        firsts = [first[begin : begin + step] for first, _ in hashes[:FILTERS]]
        rows, columns = np.divmod(np.flatnonzero(occurs[0].take(firsts[0][:, None] ^ seconds[0])), max(1, len(places)))
        for one, first, second in zip(occurs[1:], firsts[1:], seconds[1:], strict=True):
            kept = one.take(first[rows] ^ second[columns])
            rows, columns = rows[kept], columns[kept]
        found.append(np.stack([rows + begin, order[columns]]))
    before, after = np.concatenate(found, axis=1)
    least = np.full(len(before), MOST, np.uint32)
    for counters, (first, second) in zip(known.sketch, hashes, strict=True):
        np.minimum(least, counters[first[before] ^ second[after]], out=least)
    return before[least > 0], after[least > 0], least[least > 0]


def cost_transitions(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the cost of a silo's part and of the kept sums."""
    sent = sum(float(np.prod(one.shape)) for one in transition_tensors(method))
    pairs = 8.0 * 8.0 * len(WEIGHTS) * shard.edges
    words = f"{TRANSITIONS.statistics} ({sent:,.0f} numbers)"
    return [Cost("the sums", FIXED_BYTES + 4.0 * sent), Cost(words, 12.0 * sent + pairs, SPARSE * pairs + sent)]


def bytes_of_transitions(method: MethodSettings) -> float:
    """Estimates the memory of looking up pairs, in bytes."""
    sent = sum(float(np.prod(one.shape)) for one in transition_tensors(method))
    return 8.0 * sent + 60.0 * BLOCK + 60.0 * method.catalogue * (PAIRS + expected_strays(method))


def warn_of_rare_visits(method: MethodSettings) -> tuple[str, ...]:
    """Warns of rare visits that are revealed, and of too few counters."""
    least, strays = method.basis.least_pairs, expected_strays(method)
    told = f"a silo that lies about its own counts reads transitions that fewer than {least} visits have too"
    warnings = [f"{told} (basis.least_pairs)"]
    if least == 1:
        warnings = ["basis.least_pairs = 1: all silos learn the transitions of single visits"]
    if strays > PAIRS:
        words = f"about {strays:,.0f} pairs of each item are false, beside about {PAIRS} true ones"
        larger = "expected a larger basis.counters or basis.least_pairs, or a shorter list"
        warnings.append(f"{words}: the counters are too few for {method.catalogue:,} items; {larger}")
    return tuple(warnings)


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
