"""A round's updates -> their mean (Eq. 13), of U32 tensors their sum; whatever lies in memory or on disk."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from shared.method.exchanged import Scalars, State, Update
from shared.method.parameters import Array, Arrays, Float32, UInt32, blocks, form, part


def mean_of_updates(state: State, updates: Sequence[Update]) -> State:
    """Eq. 13: unweighted mean of the round's updates, tensor by tensor, summed in the order of client names. U32
    tensors are summed modulo 2^32."""
    arrays = {name: centre_array(name, updates) for name in tensor_names(state, updates)}
    return centre_of(state, updates, arrays, mean_scalars(updates))


def mean_scalars(updates: Sequence[Update]) -> Scalars:
    """Of each scalar, over those who sent it. Summed exactly, so that the mean of equal ones is that very one."""
    names = sorted({name for update in updates for name in update.scalars})
    return {name: statistics.mean(u.scalars[name] for u in updates if name in u.scalars) for name in names}


def tensor_names(state: State, updates: Sequence[Update]) -> tuple[str, ...]:
    """The names of the state's tensors, then those of the reports, which are in the updates alone."""
    reports = {name for update in updates for name in update.arrays} - set(state.arrays)
    return (*state.arrays, *sorted(reports))


def centre_of(state: State, updates: Sequence[Update], arrays: Arrays, scalars: Scalars) -> State:
    """The centre of these updates: arrays that the state has, reports, scalars, and each client's latest scalars."""
    ordered = sorted(updates, key=lambda update: update.client)
    latest = {**state.latest, **{update.client: dict(update.scalars) for update in ordered}}
    shared = {name: value for name, value in arrays.items() if name in state.arrays}
    reports = {name: value for name, value in arrays.items() if name not in state.arrays}
    return State(shared, scalars, latest, reports=reports)


def centre_array(name: str, updates: Sequence[Update]) -> Array:
    """One tensor's mean, or of U32 its sum, in the order of client names."""
    ordered = sorted(updates, key=lambda update: update.client)
    kind = form(ordered[0].arrays, name)
    centre = _sum_array if kind.dtype == "U32" else _mean_array
    return centre(name, kind.shape, ordered)


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
