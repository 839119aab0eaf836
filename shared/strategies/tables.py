"""A round's item tables -> their mean, row by row, over the clients that moved the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shared.method.exchange import ITEM_TABLE
from shared.method.exchanged import State, Update
from shared.method.parameters import Float32, blocks, part
from shared.strategies.mean import mean_of_updates


def only_items(name: str) -> bool:
    """The item table, and nothing else: user vectors stay where they are."""
    return name == ITEM_TABLE


def moved_rows(before: Float32, after: Float32) -> NDArray[np.bool_]:
    """Which rows of a table (C, d) are no longer what they were, (C,)."""
    changed: NDArray[np.bool_] = (np.asarray(after) != np.asarray(before)).any(axis=1)
    return changed


def mean_of_moved(state: State, updates: Sequence[Update]) -> State:
    """Item table: what was received plus the sum of the changes over the number of clients that moved the row; any
    other tensor and every scalar: the plain mean. Summed in the order of client names."""
    # Paper: the mean over all clients; here: over those that moved the row, because a silo that does not have an item
    # sends its row back as it came, and would only hold the others' changes down.
    others = mean_of_updates(state, updates, without=ITEM_TABLE)
    return replace(others, arrays={**others.arrays, ITEM_TABLE: _table(state.arrays[ITEM_TABLE], updates)})


def _table(before: Float32, updates: Sequence[Update]) -> Float32:
    """Rows by rows, because a table may be large."""
    ordered, width = sorted(updates, key=lambda one: one.client), before.shape[1]
    found = np.empty(before.shape, dtype=np.float32)
    for begin, end in blocks(before.size, multiple=width):
        rows = slice(begin // width, end // width)
        after = (part(update.arrays, ITEM_TABLE, begin, end).reshape(-1, width) for update in ordered)
        found[rows] = _mean_of_moved(before[rows], after)
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
