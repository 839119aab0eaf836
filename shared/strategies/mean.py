"""A round's updates -> their mean (Eq. 13), of U32 tensors their sum; whatever lies in memory or on disk."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from shared.method.exchanged import Scalars, State, Update
from shared.method.parameters import Array, Arrays, Float32, UInt32, blocks, form, part


def mean_of_updates(state: State, updates: Sequence[Update], *, without: str = "") -> State:
    """Eq. 13: unweighted mean of the round's updates, tensor by tensor, summed in the order of client names. U32
    tensors are summed modulo 2^32.

    Scalars are summed exactly, so that the mean of equal ones is that very one. without: a tensor to pass over.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    arrays = {name: _centre_array(name, ordered) for name in tensor_names(state, ordered) if name != without}
    names = sorted({name for update in ordered for name in update.scalars})
    scalars = {name: statistics.mean(u.scalars[name] for u in ordered if name in u.scalars) for name in names}
    return centre_of(state, ordered, arrays, scalars)


def tensor_names(state: State, updates: Sequence[Update]) -> tuple[str, ...]:
    """The names of the state's tensors, then those of the reports, which are in the updates alone."""
    reports = {name for update in updates for name in update.arrays} - set(state.arrays)
    return (*state.arrays, *sorted(reports))


def centre_of(state: State, updates: Sequence[Update], arrays: Arrays, scalars: Scalars) -> State:
    """The centre of these updates: arrays that the state has, reports, scalars, and each client's latest scalars."""
    latest = {**state.latest, **{update.client: dict(update.scalars) for update in updates}}
    shared = {name: value for name, value in arrays.items() if name in state.arrays}
    reports = {name: value for name, value in arrays.items() if name not in state.arrays}
    return State(shared, scalars, latest, reports=reports)


def _centre_array(name: str, updates: Sequence[Update]) -> Array:
    kind = form(updates[0].arrays, name)
    centre = _sum_array if kind.dtype == "U32" else _mean_array
    return centre(name, kind.shape, updates)


def _sum_array(name: str, shape: tuple[int, ...], updates: Sequence[Update]) -> UInt32:
    """Modulo 2^32, block by block."""
    total = np.zeros(shape, dtype=np.uint32)
    flat = total.reshape(-1)
    for begin, end in blocks(flat.size):
        for update in updates:
            flat[begin:end] += part(update.arrays, name, begin, end)
    return total


def _mean_array(name: str, shape: tuple[int, ...], updates: Sequence[Update]) -> Float32:
    """Sums in float64: with equal inputs the mean is then exactly that input. Block by block: a tensor may be large."""
    mean = np.empty(shape, dtype=np.float32)
    flat = mean.reshape(-1)
    for begin, end in blocks(flat.size):
        total = part(updates[0].arrays, name, begin, end).astype(np.float64)
        for update in updates[1:]:
            total += part(update.arrays, name, begin, end)
        flat[begin:end] = total / len(updates)
    return mean
