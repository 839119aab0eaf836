"""A round's item tables -> their mean, row by row, over the clients that moved the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shared.parameters import ITEM_TABLE, Float32
from shared.strategy import State, Update, mean


def only_items(name: str) -> bool:
    """The item table, and nothing else: user vectors stay where they are."""
    return name == ITEM_TABLE


def moved_rows(before: Float32, after: Float32) -> NDArray[np.bool_]:
    """Which rows of a table (C, d) are no longer what they were, (C,)."""
    changed: NDArray[np.bool_] = (np.asarray(after) != np.asarray(before)).any(axis=1)
    return changed


def mean_of_moved(state: State, updates: Sequence[Update]) -> State:
    """Item table: what was received plus the sum of the changes over the number of clients that moved the row; any
    other tensor and every scalar: the plain mean.

    # Paper: the mean over all clients; here: over those that moved the row, because a silo that does not have an item
    sends its row back as it came, and would only hold the others' changes down. Summed in the order of client names.
    """
    found = mean(state, updates)
    if ITEM_TABLE not in state.arrays:
        return found
    table = _mean_of_moved(np.asarray(state.arrays[ITEM_TABLE]), updates)
    return replace(found, arrays={**found.arrays, ITEM_TABLE: table})


def _mean_of_moved(before: Float32, updates: Sequence[Update]) -> Float32:
    """Received plus the mean change of the movers is the mean of the movers' rows: in float64, as exact as a mean."""
    total, movers = np.zeros(before.shape), np.zeros(len(before), dtype=np.int64)
    for update in sorted(updates, key=lambda one: one.client):
        after = np.asarray(update.arrays[ITEM_TABLE])
        moved = moved_rows(before, after)
        total[moved] += after[moved]
        movers += moved
    rows = total / np.maximum(movers, 1)[:, None]
    return np.where(movers[:, None] > 0, rows, before).astype(np.float32)
