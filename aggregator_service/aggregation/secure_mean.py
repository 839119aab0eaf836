"""Masked vectors and answers -> the centre of a secure round; a state -> what one client is told of it."""

from __future__ import annotations

from collections.abc import Mapping

from shared.method.exchanged import Parameters, Scalars, State
from shared.protocol.secure import recovery
from shared.protocol.secure.server import SecureRound
from shared.protocol.secure.vector import Vector
from shared.strategies.strategy import Strategy


def centre_of_sum(exchange: SecureRound, before: State, vectors: Mapping[str, Vector]) -> State:
    """Eq. 13 of the survivors. Of single clients it holds what they have sent openly: the latest visible scalars."""
    mean = recovery.mean(exchange, vectors)
    latest: dict[str, Scalars] = {**before.latest, **exchange.open_scalars}
    arrays = {name: mean.arrays[name] for name in before.arrays}
    reports = {name: value for name, value in mean.arrays.items() if name not in before.arrays}
    return State(arrays, mean.scalars, latest, reports=reports)


def answer_for(strategy: Strategy, state: State, client: str, *, summed: bool) -> Parameters:
    """The mean, and the scalars by which the client mixes for itself (Eq. 12, 14), where the strategy mixes.

    One that is not in this round's sum has nothing to mix with: it is told to take the mean alone.
    """
    mean, mixing = Parameters(state.arrays, strategy.returned_scalars(state)), strategy.mixing
    if mixing is None:
        return mean
    told = mixing.tell(state.latest, client) if summed else mixing.mean_alone
    return Parameters(mean.arrays, {**mean.scalars, **told})
