"""Robust aggregation: clipping, median, trimmed mean, Krum."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Float32, Form, State, Update, array_form, array_part
from shared.method.settings import MethodSettings
from shared.strategies.aggregation import make_centre, mean_of_updates, tensor_names
from shared.strategies.strategy import Combine, Strategy

PIECE = 1 << 22  # numbers of all clients together; 32 MiB in float64
COLUMNS = 8 * PIECE  # numbers of all clients that are stacked at a time; 128 MiB in float32


def stack_tensor(name: str, updates: Sequence[Update]) -> Float32:
    """Stacks a tensor of all updates, flat: (C, P_name)."""
    size = array_form(updates[0].arrays, name).size
    stack = np.empty((len(updates), size), dtype=np.float32)
    for row, update in zip(stack, updates, strict=True):
        row[:] = array_part(update.arrays, name, 0, size)
    return stack


def column_blocks(stack: Float32) -> Iterator[Float64]:
    """Yields columns of a stack from left to right, in float64.

    (C, <= PIECE / C) at a time.
    """
    width = max(1, PIECE // len(stack))
    for begin in range(0, stack.shape[1], width):
        yield stack[:, begin : begin + width].astype(np.float64)


Columns = Callable[[Float64], Float64]
"""(C, P) -> (P,)."""
Numbers = Callable[[Sequence[float]], float]


def median(state: State, updates: Sequence[Update]) -> State:
    """Computes the median of each coordinate and scalar.

    Of an even number the mean of the middle two.
    """
    return _centre_state(state, updates, lambda values: np.median(values, axis=0), statistics.median)


def trimmed_mean(state: State, updates: Sequence[Update], *, trim: int) -> State:
    """Computes means without the `trim` least and greatest values of each coordinate and scalar.

    Raises SettingsError for 2 trim updates or fewer; of a scalar that no more than that have sent, the median.
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
    """Computes a state of robust centres, independent of the order of updates."""
    arrays = {
        name: _centre(stack_tensor(name, updates), columns).reshape(np.shape(updates[0].arrays[name]))
        for name in tensor_names(state, updates)
    }
    names = sorted({name for update in updates for name in update.scalars})
    scalars = {name: numbers([u.scalars[name] for u in updates if name in u.scalars]) for name in names}
    return make_centre(state, updates, arrays, scalars)


def _centre(stack: Float32, columns: Columns) -> Float32:
    parts = [columns(piece) for piece in column_blocks(stack)]
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, dtype=np.float32)


def krum(state: State, updates: Sequence[Update], *, tolerated: int, kept: int) -> State:
    """Computes the mean of the `kept` updates with the least Krum scores.

    `kept` = 1 is Krum, more is multi-Krum. Raises SettingsError for fewer than 2 f + 3 updates, f = `tolerated`, or
    kept + f + 2. All clients' scalars are remembered.
    """
    if len(updates) < 2 * tolerated + 3 or kept > len(updates) - tolerated - 2:
        expected = f"{max(2 * tolerated + 3, kept + tolerated + 2)} updates or more"
        raise SettingsError(f"tolerated: expected {expected} to keep {kept} of, got {len(updates)}")
    ordered = sorted(updates, key=lambda update: update.client)
    found = krum_scores(squared_distances(sorted(state.arrays), ordered), tolerated)
    chosen = [ordered[index] for index in np.argsort(found, kind="stable")[:kept]]
    latest = {update.client: dict(update.scalars) for update in ordered}
    return replace(mean_of_updates(state, chosen), latest={**state.latest, **latest})


def squared_distances(names: Sequence[str], updates: Sequence[Update]) -> Float64:
    """Computes |x_i - x_j|^2 of every two updates over all tensors, (C, C).

    As |x_i|^2 + |x_j|^2 - 2 x_i x_j, of what is left once the median of all is subtracted: so nothing that all have
    in common rounds off how they differ.
    """
    total = np.zeros((len(updates), len(updates)))
    for name in names:
        for piece in column_blocks(stack_tensor(name, updates)):
            centred = piece - np.median(piece, axis=0)
            total += centred @ centred.T
    lengths = np.diag(total)
    return np.maximum(lengths[:, None] + lengths - 2.0 * total, 0.0)


def krum_scores(squares: Float64, tolerated: int) -> Float64:
    """Computes each update's Krum score, (C,).

    The sum of its squared distances to its C - f - 2 nearest others.
    """
    others = np.sort(squares + np.diag(np.full(len(squares), np.inf)), axis=1)
    nearest: Float64 = others[:, : len(squares) - tolerated - 2].sum(axis=1)
    return nearest


def update_distances(state: State, updates: Sequence[Update]) -> dict[str, float]:
    """Computes |sent - state|_2 over all tensors, by client."""
    # Elsewhere: the distance from what that client received; here: from the state, which all had in common. A client's
    # own past is in what it received (Eq. 14), so that it could walk away step by step, each of them short.
    squares = dict.fromkeys(sorted(update.client for update in updates), 0.0)
    for name in state.arrays:
        before = np.asarray(state.arrays[name], dtype=np.float64)
        for update in updates:
            squares[update.client] += float(np.sum((update.arrays[name] - before) ** 2))
    return {client: math.sqrt(total) for client, total in squares.items()}


def find_far_clients(found: Mapping[str, float], factor: float) -> dict[str, float]:
    """Finds clients further than `factor` times the median, with that ratio.

    Empty where the median is 0: in a round in which most have changed nothing, no length is usual.
    """
    median = statistics.median(found.values()) if found else 0.0
    if median == 0.0:
        return {}
    return {client: length / median for client, length in found.items() if length > factor * median}


def clip_updates(state: State, updates: Sequence[Update], factor: float) -> list[Update]:
    """Clips updates whose distance is above `factor` times the median.

    They are drawn back along their own direction. At least half of the updates, and all scalars, stay as they are.
    With a median of 0 the others become the state.
    """
    found = update_distances(state, updates)
    most = factor * statistics.median(found.values()) if found else 0.0
    return [_clip_update(state, update, found[update.client], most) for update in updates]


def _clip_update(state: State, update: Update, distance: float, most: float) -> Update:
    if distance <= most:
        return update
    return replace(update, arrays=ClippedArrays(state.arrays, update.arrays, most / distance))


@dataclass(frozen=True)
class ClippedArrays(Mapping[str, Float32]):
    """Update moved towards the state: before + share * (sent - before).

    Each tensor, or part of one, is computed when needed. A report begins at 0.
    """

    before: Arrays
    sent: Arrays
    share: float

    def __getitem__(self, name: str) -> Float32:
        whole = self.form(name)
        return self.part(name, 0, whole.size).reshape(whole.shape)

    def form(self, name: str) -> Form:
        return array_form(self.sent, name)

    def part(self, name: str, begin: int, end: int) -> Float32:
        before = array_part(self.before, name, begin, end).astype(np.float64) if name in self.before else 0.0
        return (before + self.share * (array_part(self.sent, name, begin, end) - before)).astype(np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sent)

    def __len__(self) -> int:
        return len(self.sent)


def aggregate_robustly(strategy: Strategy, method: MethodSettings) -> Strategy:
    """Adds the settings' robust aggregation to a strategy; SettingsError if it does not fit."""
    # Paper: the mean of the round's updates (Eq. 13), which Eq. 14 mixes with a client's own parameters; here: where
    # the settings say so, the mean of cut updates, or a median, trimmed mean or Krum in the mean's place, because one
    # update can carry a mean anywhere. Eq. 14 then mixes that centre with the client's own parameters, as it sent them.
    _require_possible(strategy, method)
    combine = strategy.combine if method.aggregate == "mean" else _choose_centre(method)
    if method.clip_factor > 0:
        combine = partial(_combine_clipped, combine=combine or mean_of_updates, factor=method.clip_factor)
    return replace(strategy, combine=combine)


def least_updates(method: MethodSettings) -> int:
    """Returns the least number of updates that a round needs."""
    if method.aggregate == "trimmed_mean":
        return 2 * method.tolerated + 1
    if method.aggregate == "krum":
        return max(2 * method.tolerated + 3, method.krum_kept + method.tolerated + 2)
    return 1


def _require_possible(strategy: Strategy, method: MethodSettings) -> None:
    changed = {"aggregate": method.aggregate != "mean", "clip_factor": method.clip_factor > 0}
    changed["quarantine_factor"] = method.quarantine_factor > 0
    chosen = [name for name, is_set in changed.items() if is_set]
    if chosen and not strategy.declaration(method).tensors:
        raise SettingsError(f"{chosen[0]}: expected its default with strategy {strategy.name}, which sends no tensors")
    if chosen and strategy.reparametrised:
        why = "which sends no parameters, so that no update is far from another"
        raise SettingsError(f"{chosen[0]}: expected its default with strategy {strategy.name}, {why}")
    if method.aggregate != "mean" and strategy.combine is not None:
        why = f"expected mean with strategy {strategy.name}, which does not take the plain mean of updates"
        raise SettingsError(f"aggregate: {why}, got {method.aggregate}")


def _choose_centre(method: MethodSettings) -> Combine:
    if method.aggregate == "median":
        return median
    if method.aggregate == "trimmed_mean":
        return partial(trimmed_mean, trim=method.tolerated)
    return partial(krum, tolerated=method.tolerated, kept=method.krum_kept)


def _combine_clipped(state: State, updates: Sequence[Update], *, combine: Combine, factor: float) -> State:
    return combine(state, clip_updates(state, updates, factor))
