"""The state before a round and the centre of its updates -> the state after it, by an optimiser with a memory.

The memory is a part of the state: m.<tensor> and v.<tensor>, float32, of the tensor's shape, which no client is sent.
Arithmetic is float64, block by block: a tensor may be large, and lie on disk.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shared.method.exchanged import State
from shared.method.graph import Float64
from shared.method.parameters import STORED, Array, Form, blocks, form, part
from shared.strategies.server.magnitudes import MAGNITUDE, REPORTED
from shared.strategies.server.optimiser import Moments, ServerOptimiser

FIRST, SECOND = "m.", "v."
LARGEST = float(np.finfo(np.float32).max)


def advance_state(before: State, centre: State, *, optimiser: ServerOptimiser) -> State:
    """A step from `before`, and what is remembered for the next one. Scalars and the rest are the centre's."""
    arrays: dict[str, Array] = {}
    memory: dict[str, Array] = {}
    for name in sorted(before.arrays):
        kind = form(before.arrays, name)
        arrays[name] = _empty(kind)
        memory |= {key + name: _empty(kind) for key in _remembered(optimiser)}
        for begin, end in blocks(kind.size):
            moved, moments = _step_block(before, centre, name, (begin, end), optimiser)
            arrays[name].reshape(-1)[begin:end] = _bound(moved)
            for key, values in zip(_remembered(optimiser), moments, strict=False):  # momentum has no v
                memory[key + name].reshape(-1)[begin:end] = _bound(values)
    return replace(centre, arrays=arrays, memory=memory)


def _step_block(
    before: State, centre: State, name: str, span: tuple[int, int], optimiser: ServerOptimiser
) -> tuple[Float64, Moments]:
    """These numbers of a tensor after the round, and their moments."""
    old = part(before.arrays, name, *span).astype(np.float64)
    change = part(centre.arrays, name, *span) - old
    magnitude = _magnitude_of(centre, name, span, change) if optimiser.resistant else change
    step, moments = optimiser.step(change, magnitude, _recall(before, name, span, optimiser))
    return old + step, moments


def _magnitude_of(centre: State, name: str, span: tuple[int, int], change: Float64) -> Float64:
    """D', which is never below |D|: reports that say less, so that steps became longer, do not count. Where clients
    report one number of their whole update, it stands for each number's D'."""
    if REPORTED in centre.reports:
        return np.maximum(float(part(centre.reports, REPORTED, 0, 1)[0]), np.abs(change))
    return np.maximum(part(centre.reports, MAGNITUDE + name, *span), np.abs(change))


def _recall(before: State, name: str, span: tuple[int, int], optimiser: ServerOptimiser) -> Moments:
    """The moments of these numbers; in the first round those that all begin with."""
    begun = optimiser.begin(span[1] - span[0])
    kept = {key: part(before.memory, key + name, *span) for key in (FIRST, SECOND) if key + name in before.memory}
    first, second = kept.get(FIRST, begun.first), kept.get(SECOND, begun.second)
    return Moments(first.astype(np.float64), second.astype(np.float64))


def _remembered(optimiser: ServerOptimiser) -> tuple[str, ...]:
    return (FIRST,) if optimiser.second_moment is None else (FIRST, SECOND)


def _bound(values: Float64) -> Float64:
    """Within float32: the square of an outrageous update ends at the largest number, not at infinity."""
    return np.clip(values, -LARGEST, LARGEST)


def _empty(kind: Form) -> Array:
    return np.empty(kind.shape, dtype=STORED[kind.dtype])
