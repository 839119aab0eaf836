"""Aggregation of a round's updates: mean (Eq. 13), item tables row by row, personal mixing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError
from shared.method.parameters import (
    Array,
    Arrays,
    Float32,
    Parameters,
    Scalars,
    State,
    Update,
    array_form,
    array_part,
    blocks,
)
from shared.method.tensors import ITEM_TABLE, Range


def mean_of_updates(state: State, updates: Sequence[Update]) -> State:
    """Computes the unweighted mean of the updates (Eq. 13), in the order of client names.

    U32 tensors are summed modulo 2^32.
    """
    arrays = {name: centre_array(name, updates) for name in tensor_names(state, updates)}
    return make_centre(state, updates, arrays, mean_scalars(updates))


def mean_scalars(updates: Sequence[Update]) -> Scalars:
    """Computes the mean of each scalar over the clients who sent it.

    Summed exactly, so that the mean of equal values is that value.
    """
    names = sorted({name for update in updates for name in update.scalars})
    return {name: statistics.mean(u.scalars[name] for u in updates if name in u.scalars) for name in names}


def tensor_names(state: State, updates: Sequence[Update]) -> tuple[str, ...]:
    """Lists the state's tensors, then those of the reports."""
    reports = {name for update in updates for name in update.arrays} - set(state.arrays)
    return (*state.arrays, *sorted(reports))


def make_centre(state: State, updates: Sequence[Update], arrays: Arrays, scalars: Scalars) -> State:
    """Makes the centre of updates as a state, with each client's latest scalars."""
    ordered = sorted(updates, key=lambda update: update.client)
    latest = {**state.latest, **{update.client: dict(update.scalars) for update in ordered}}
    shared = {name: value for name, value in arrays.items() if name in state.arrays}
    reports = {name: value for name, value in arrays.items() if name not in state.arrays}
    return State(shared, scalars, latest, reports=reports)


def centre_array(name: str, updates: Sequence[Update]) -> Array:
    """Computes one tensor's mean, or for U32 its sum, in the order of client names."""
    ordered = sorted(updates, key=lambda update: update.client)
    dtype, shape = kind = array_form(ordered[0].arrays, name)
    centre: Array = np.empty(shape, dtype=np.uint32 if dtype == "U32" else np.float32)
    for begin, end in blocks(kind.size):
        parts = (array_part(update.arrays, name, begin, end) for update in ordered)
        centre.reshape(-1)[begin:end] = centre_parts(parts, len(ordered), dtype)
    return centre


def centre_parts(parts: Iterator[Array], count: int, dtype: str) -> Array:
    """Computes the mean of values in float64, or of U32 the sum modulo 2^32.

    With equal inputs the mean is then exactly that input.
    """
    total: Any = next(parts).astype(np.uint32 if dtype == "U32" else np.float64)
    for part in parts:
        total += part
    centre: Array = total if dtype == "U32" else (total / count).astype(np.float32)
    return centre


@dataclass(frozen=True)
class Mixing:
    """Mixture of the mean and a client's own update.

    server_scalars: name and range of each scalar that the server gives a client.
    scalars_of: (latest visible scalars of all clients, one client) -> the scalars of that client.
    mix: (these scalars, mean, own update) -> the client's parameters.
    mean_alone: scalars with which `mix` gives the mean itself.
    least_share: smallest part of the mean that a client gets.
    """

    server_scalars: Mapping[str, Range]
    scalars_of: Callable[[Mapping[str, Scalars], str], Scalars]
    mix: Callable[[Scalars, Parameters, Parameters], Parameters]
    mean_alone: Scalars
    least_share: float

    def split_server_scalars(self, given: Parameters) -> tuple[Scalars, Parameters]:
        """Splits the server's scalars from the mean.

        Raises ProtocolError for one that is missing or out of range.
        """
        for name, bounds in self.server_scalars.items():
            if name not in given.scalars or given.scalars[name] not in bounds:
                expected = f"expected a {name} from {bounds.least:g} to {bounds.most:g} with the mean"
                raise ProtocolError(f"{expected}, got another or none")
        server_scalars = {name: value for name, value in given.scalars.items() if name in self.server_scalars}
        return server_scalars, self.drop_server_scalars(given)

    def drop_server_scalars(self, given: Parameters) -> Parameters:
        """Returns the mean without the server's scalars, alike for all clients."""
        return Parameters(
            given.arrays, {n: value for n, value in given.scalars.items() if n not in self.server_scalars}
        )


def is_item_table(name: str) -> bool:
    """Tells whether a tensor is the item table."""
    return name == ITEM_TABLE


def moved_rows(before: Float32, after: Float32) -> NDArray[np.bool_]:
    """Returns which rows of a table (C, d) have changed, (C,)."""
    changed: NDArray[np.bool_] = (np.asarray(after) != np.asarray(before)).any(axis=1)
    return changed


def mean_of_moved_rows(state: State, updates: Sequence[Update]) -> State:
    """Computes item tables' means over the clients that moved a row, else plain means.

    Item table: what was received plus the sum of the changes over the number of clients that moved the row. Summed in
    the order of client names. A report of the table, which begins at 0, is treated as the table.
    """
    # Paper: the mean over all clients; here: over those that moved the row, because a silo that does not have an item
    # sends its row back as it came, and would only hold the others' changes down.
    names = tensor_names(state, updates)
    tables = {name: _table(name, state, updates) for name in names if name.endswith(ITEM_TABLE)}
    plain = {name: centre_array(name, updates) for name in names if name not in tables}
    return make_centre(state, updates, {**plain, **tables}, mean_scalars(updates))


def _table(name: str, state: State, updates: Sequence[Update]) -> Float32:
    """Computes the mean of a table row by row, because it may be large."""
    ordered, shape = sorted(updates, key=lambda one: one.client), array_form(updates[0].arrays, name).shape
    found, before = np.empty(shape, dtype=np.float32), state.arrays.get(name)
    for begin, end in blocks(found.size, multiple=shape[1]):
        rows = slice(begin // shape[1], end // shape[1])
        after = (array_part(update.arrays, name, begin, end).reshape(-1, shape[1]) for update in ordered)
        found[rows] = _mean_of_moved(np.zeros_like(found[rows]) if before is None else before[rows], after)
    return found


def _mean_of_moved(before: Float32, sent: Iterable[Float32]) -> Float32:
    """Computes the mean of each row over the clients that moved it, in float64.

    What was received plus the mean change is the mean of their rows.
    """
    total, movers = np.zeros(before.shape), np.zeros(len(before), dtype=np.int64)
    for after in sent:
        moved = moved_rows(before, after)
        total[moved] += after[moved]
        movers += moved
    rows = total / np.maximum(movers, 1)[:, None]
    return np.where(movers[:, None] > 0, rows, before).astype(np.float32)
