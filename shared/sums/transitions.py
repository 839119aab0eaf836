"""Transitions: how often one item is clicked soon after another, summed over silos.

Where the catalogue is small, each ordered pair of items has a number. Where it is large, pairs share ROWS rows of
counters (count-min sketch: Cormode and Muthukrishnan 2005). A pair adds to one counter of each row, found by public
hashes. The least of a pair's counters in the sum is never below the pair's own sum.

A visit adds at most UNIT to a pair, however often it has it. So what is above (k - 1) UNIT has come from k visits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from shared.method.parameters import Arrays
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import Shapes, Sum, UInt32, describe_rare_pairs, require_catalogue

VISITS, COUNTS, SKETCH = "transitions.visits", "transitions.counts", "transitions.sketch"
WEIGHTS = (7, 5, 5)
"""Weights that a visit adds to a pair whose second click is the next one, the one after it, or the third. They are so
near to each other that three visits always add more than two: 3 * 5 > 2 * 7."""
UNIT = max(WEIGHTS)
ROWS = 8
PAIRS, VISITS_OF_PAIRS = (
    16,
    24,
)  # usual numbers of an item in public clicks: different pairs, and visits of all its pairs
LEAST_COUNTERS, MOST_COUNTERS = 1 << 19, 1 << 22  # default counters of a row: 17 to 134 MB


def transition_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of visits of each item, and of pairs or shared counters."""
    items = require_catalogue(method)
    counters = method.basis.counters or usual_counters(items)
    if items**2 <= ROWS * counters:
        pairs = Tensor(COUNTS, (items, items), "zeros", dtype="U32")
    else:
        pairs = Tensor(SKETCH, (ROWS, counters), "zeros", dtype="U32")
    return (Tensor(VISITS, (items,), "zeros", dtype="U32"), pairs)


def transition_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns the catalogue's size, and the counters of a row unless set by name."""
    found = {"catalogue": shapes[VISITS][0]}
    if SKETCH in shapes and "counters" not in basis.model_fields_set:
        counters = shapes[SKETCH][1]
        found |= {} if counters == usual_counters(found["catalogue"]) else {"basis.counters": counters}
    return found


def usual_counters(items: int) -> int:
    """Returns the usual number of counters: a power of two, 30 an item or more.

    On public clicks these are two or so for each pair that occurs.
    """
    return min(MOST_COUNTERS, max(LEAST_COUNTERS, 1 << (30 * items - 1).bit_length()))


def count_stray_pairs(items: int, counters: int, least: int, visits: float | None = None) -> float:
    """Estimates the pairs of an item that a sketch reports although no visit has them.

    A counter is reported where `least` visits have added to it, L of N items and W counters with a chance of
    P(Poisson(N L / W) >= least), and a stray pair where all ROWS are: N P^ROWS. visits: L, of an item's pairs; None:
    what public clicks have, of which each pair counts once where every one is reported.
    """
    added = items / counters * (visits or (PAIRS if least == 1 else VISITS_OF_PAIRS))
    fewer = sum(math.exp(-added) * added**one / math.factorial(one) for one in range(min(least, 50)))
    return items * max(0.0, 1.0 - fewer) ** ROWS


def expected_strays(method: MethodSettings) -> float:
    """Estimates the stray pairs of a run's sketch; 0 if pairs share no counters."""
    shapes = {one.name: one.shape for one in transition_tensors(method)}
    return count_stray_pairs(method.catalogue, shapes[SKETCH][1], method.basis.least_pairs) if SKETCH in shapes else 0.0


def hide_rare_transitions(method: MethodSettings, sums: Arrays) -> Arrays:
    """Sets counts to 0 that fewer than `least_pairs` visits may have added."""
    least = method.basis.least_pairs
    from_enough = {VISITS: least, COUNTS: (least - 1) * UNIT + 1, SKETCH: (least - 1) * UNIT + 1}
    return {name: np.where(value < from_enough[name], np.uint32(0), value) for name, value in sums.items()}


def hash_items(items: int, counters: int, row: int) -> tuple[UInt32, UInt32]:
    """Computes two numbers of each item, (N,), whose XOR gives a pair's counter.

    A pair (a, b) has the counter first[a] XOR second[b] of the row. They follow from the sizes alone, in every run:
    with other hashes a second sum over the same data would tell more.
    """
    generator = np.random.default_rng([items, counters, row])
    first, second = generator.integers(counters, size=(2, items), dtype=np.uint32)
    return first, second


LEARNT = "which items some silo has, how often, and which go together"


TRANSITIONS = Sum(
    name="transitions",
    word="transitions",
    title="the transitions",
    statistics="counts of what is clicked after what",
    tensors=transition_tensors,
    own_names=frozenset({VISITS, COUNTS, SKETCH}),
    sizes=transition_sizes,
    hand_out=hide_rare_transitions,
    default_task="sessions",
    reason="what visits of all silos have clicked after what, because silos hold visits",
    words={
        VISITS: "how many of its visits have each item",
        COUNTS: "how many click one item soon after another, for each two",
        SKETCH: "how many click one item soon after another, in counters that pairs of items share",
    },
    disclosure=lambda basis: f"{LEARNT}{describe_rare_pairs(basis, 'visits')}",
)
