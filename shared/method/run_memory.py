"""Estimates of the memory and operations of a run, from its settings.

A service estimates a run before it begins it, and refuses one that takes more than `allowed_memory`: the system ends
a process that takes too much, again after each start. An estimate is an upper bound, by a small factor.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.memory import usable_memory
from shared.method.declaration import Counts
from shared.method.spectrum import BLOCK, BLOCK_COUNT, BLOCK_SHARE, DENSE_LIMIT, MOST_NUMBERS

SHARE = 0.75  # part of the memory that a run may use; the rest is for the service's other work
SPARSE = 20.0  # an operation on a sparse array takes as long as 20 on a dense one
DIRECTION_STEPS = 6  # vectors that the iterative solver tries for each one that it finds


class Cost(NamedTuple):
    """Cost of one part of a run: bytes at once, and operations of a round."""

    what: str
    bytes: float
    operations: float = 0.0


def allowed_memory(setting: int | None) -> int:
    """Returns the bytes that a run may take, by setting or as a share."""
    return setting or int(SHARE * usable_memory())


def anchor_cost(size: Counts, cutoff: int) -> Cost:
    """Estimates the cost of drawing the anchor graph and of its spectrum."""
    pairs = float(size.users) * size.items
    edges = min(float(size.edges), pairs)
    drawn = 8.0 * pairs if edges > pairs / 20.0 or pairs <= 10_000 else 32.0 * edges  # as numpy draws without repeats
    found = spectrum_cost("", Counts(users=size.users, items=size.items, edges=max(1, int(edges))), cutoff)
    words = f"the anchor (anchor.users {size.users:,}, anchor.items {size.items:,}, anchor.edges {size.edges:,})"
    return Cost(words, max(drawn + 24.0 * edges, found.bytes), SPARSE * 4.0 * edges + found.operations)


def spectrum_cost(what: str, graph: Counts, cutoff: int) -> Cost:
    """Estimates the cost of a graph's lowest frequencies (shared.method.spectrum)."""
    short, long = sorted((graph.users, graph.items))
    count = max(1, min(cutoff, short - 1))
    if short <= max(DENSE_LIMIT, 2 * count):
        return Cost(what, 8.0 * 8.0 * short * long, 8.0 * short * short * long)
    size = float(2 * count + 1)  # vectors of the basis, and of its projection
    if count >= BLOCK_COUNT and short >= BLOCK_SHARE * count:
        size = max(2.0 * (count + 2 * BLOCK), min(MOST_NUMBERS / short, float(short)))
    vectors = DIRECTION_STEPS * float(count)
    tried = min(max(MOST_NUMBERS, 2.0 * (count + 32) * short), vectors * short)
    operations = vectors * (SPARSE * 4.0 * graph.edges + 4.0 * tried)
    held = 8.0 * (size * short + 2.0 * size**2) + 28.0 * (short + long) * count
    return Cost(what, 80.0 * graph.edges + held, operations)


def describe_bytes(count: float) -> str:
    """Writes a size in MB or GB."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
