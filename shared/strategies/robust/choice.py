"""The run's settings -> how a strategy aggregates: as it says itself, or by a centre that bad updates cannot move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from shared.errors import SettingsError
from shared.method.exchanged import State, Update
from shared.method.settings import MethodSettings
from shared.strategies.mean import mean_of_updates
from shared.strategies.robust.clipping import clip_updates
from shared.strategies.robust.coordinates import median, trimmed_mean
from shared.strategies.robust.krum import krum
from shared.strategies.strategy import Combine, Strategy


def robust(strategy: Strategy, method: MethodSettings) -> Strategy:
    """The strategy as these settings aggregate. SettingsError where it cannot be aggregated so."""
    # Paper: the mean of the round's updates (Eq. 13), which Eq. 14 mixes with a client's own parameters; here: where
    # the settings say so, the mean of cut updates, or a median, trimmed mean or Krum in the mean's place, because one
    # update can carry a mean anywhere. Eq. 14 then mixes that centre with the client's own parameters, as it sent them.
    _require_possible(strategy, method)
    combine = strategy.combine if method.aggregate == "mean" else _centre(method)
    if method.clip_factor > 0:
        combine = partial(_combine_clipped, combine=combine or mean_of_updates, factor=method.clip_factor)
    return replace(strategy, combine=combine)


def least_updates(method: MethodSettings) -> int:
    """How many updates a round must have to be aggregated so."""
    if method.aggregate == "trimmed_mean":
        return 2 * method.tolerated + 1
    if method.aggregate == "krum":
        return max(2 * method.tolerated + 3, method.krum_kept + method.tolerated + 2)
    return 1


def _require_possible(strategy: Strategy, method: MethodSettings) -> None:
    asked = {"aggregate": method.aggregate != "mean", "clip_factor": method.clip_factor > 0}
    asked["quarantine_factor"] = method.quarantine_factor > 0
    chosen = [name for name, is_set in asked.items() if is_set]
    if chosen and not strategy.declaration(method).tensors:
        raise SettingsError(f"{chosen[0]}: expected its default with strategy {strategy.name}, which sends no tensors")
    if method.aggregate != "mean" and strategy.combine is not None:
        why = f"expected mean with strategy {strategy.name}, which does not take the plain mean of updates"
        raise SettingsError(f"aggregate: {why}, got {method.aggregate}")


def _centre(method: MethodSettings) -> Combine:
    if method.aggregate == "median":
        return median
    if method.aggregate == "trimmed_mean":
        return partial(trimmed_mean, trim=method.tolerated)
    return partial(krum, tolerated=method.tolerated, kept=method.krum_kept)


def _combine_clipped(state: State, updates: Sequence[Update], *, combine: Combine, factor: float) -> State:
    return combine(state, clip_updates(state, updates, factor))
