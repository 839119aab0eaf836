"""C values of each coordinate -> one that f bad ones cannot carry beyond the good ones: their median or trimmed mean.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from shared.errors import SettingsError
from shared.method.exchanged import State, Update
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.strategies.mean import centre_of, tensor_names
from shared.strategies.robust.stacks import pieces, stack_tensor

Columns = Callable[[Float64], Float64]
"""(C, P) -> (P,)."""
Numbers = Callable[[Sequence[float]], float]


def median(state: State, updates: Sequence[Update]) -> State:
    """Each coordinate's median, and each scalar's; of an even number the mean of the middle two."""
    return _centre_state(state, updates, lambda values: np.median(values, axis=0), statistics.median)


def trimmed_mean(state: State, updates: Sequence[Update], *, trim: int) -> State:
    """Each coordinate's mean without its `trim` least and `trim` greatest values, and each scalar's likewise.

    SettingsError for 2 trim updates or fewer; of a scalar that no more than that have sent, the median.
    """
    if len(updates) <= 2 * trim:
        raise SettingsError(f"tolerated: expected more than {2 * trim} updates to trim {trim}, got {len(updates)}")
    return _centre_state(state, updates, lambda values: _middle(values, trim), lambda values: _middle_of(values, trim))


def _middle(values: Float64, trim: int) -> Float64:
    inner: Float64 = np.sort(values, axis=0)[trim : len(values) - trim].mean(axis=0)
    return inner


def _middle_of(values: Sequence[float], trim: int) -> float:
    inner = sorted(values)[trim : len(values) - trim]
    return statistics.mean(inner) if inner else statistics.median(values)


def _centre_state(state: State, updates: Sequence[Update], columns: Columns, numbers: Numbers) -> State:
    """A state of these centres. They do not depend on the order of the updates."""
    arrays = {
        name: _centre(stack_tensor(name, updates), columns).reshape(np.shape(updates[0].arrays[name]))
        for name in tensor_names(state, updates)
    }
    names = sorted({name for update in updates for name in update.scalars})
    scalars = {name: numbers([u.scalars[name] for u in updates if name in u.scalars]) for name in names}
    return centre_of(state, updates, arrays, scalars)


def _centre(stack: Float32, columns: Columns) -> Float32:
    parts = [columns(piece) for piece in pieces(stack)]
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, dtype=np.float32)
