"""A round's item tables -> their mean, row by row, over the clients that moved the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.method.exchange import ITEM_TABLE
from shared.method.exchanged import State, Update
from shared.method.parameters import Float32, blocks, form, part
from shared.strategies.mean import centre_array, centre_of, mean_scalars, tensor_names


def only_items(name: str) -> bool:
    """The item table, and nothing else: user vectors stay where they are."""
    return name == ITEM_TABLE


def moved_rows(before: Float32, after: Float32) -> NDArray[np.bool_]:
    """Which rows of a table (C, d) are no longer what they were, (C,)."""
    changed: NDArray[np.bool_] = (np.asarray(after) != np.asarray(before)).any(axis=1)
    return changed


def mean_of_moved(state: State, updates: Sequence[Update]) -> State:
    """Item table: what was received plus the sum of the changes over the number of clients that moved the row; any
    other tensor and every scalar: the plain mean. Summed in the order of client names. A report of the table, which
    begins at 0, is treated as the table."""
    # Paper: the mean over all clients; here: over those that moved the row, because a silo that does not have an item
    # sends its row back as it came, and would only hold the others' changes down.
    names = tensor_names(state, updates)
    tables = {name: _table(name, state, updates) for name in names if name.endswith(ITEM_TABLE)}
    plain = {name: centre_array(name, updates) for name in names if name not in tables}
    return centre_of(state, updates, {**plain, **tables}, mean_scalars(updates))


def _table(name: str, state: State, updates: Sequence[Update]) -> Float32:
    """Rows by rows, because a table may be large."""
    ordered, shape = sorted(updates, key=lambda one: one.client), form(updates[0].arrays, name).shape
    found, before = np.empty(shape, dtype=np.float32), state.arrays.get(name)
    for begin, end in blocks(found.size, multiple=shape[1]):
        rows = slice(begin // shape[1], end // shape[1])
        after = (part(update.arrays, name, begin, end).reshape(-1, shape[1]) for update in ordered)
        found[rows] = _mean_of_moved(np.zeros_like(found[rows]) if before is None else before[rows], after)
    return found


def _mean_of_moved(before: Float32, sent: Iterable[Float32]) -> Float32:
    """Received plus the mean change of the movers is the mean of the movers' rows: in float64, as exact as a mean."""
    total, movers = np.zeros(before.shape), np.zeros(len(before), dtype=np.int64)
    for after in sent:
        moved = moved_rows(before, after)
        total[moved] += after[moved]
        movers += moved
    rows = total / np.maximum(movers, 1)[:, None]
    return np.where(movers[:, None] > 0, rows, before).astype(np.float32)
