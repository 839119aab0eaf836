"""Masked vectors and answers -> the state after a secure round; that state -> what one client is told of it."""

from __future__ import annotations

from collections.abc import Mapping

from shared.method.exchanged import Parameters, Scalars, State
from shared.protocol.secure import recovery
from shared.protocol.secure.server import SecureRound
from shared.protocol.secure.vector import Vector
from shared.strategies.lpsfed import similarities


def state_after(exchange: SecureRound, before: State, vectors: Mapping[str, Vector]) -> State:
    """Eq. 13 of the survivors. Of single clients it holds what they have sent openly: the latest rho of each."""
    mean = recovery.mean(exchange, vectors)
    latest: dict[str, Scalars] = {**before.latest, **exchange.open_scalars}
    return State(mean.arrays, mean.scalars, latest)


def told(state: State, client: str, *, summed: bool, floor: float) -> Parameters:
    """The mean, and rhobar (Eq. 12), by which the client mixes for itself (Eq. 14).

    One that is not in this round's sum has nothing to mix with: rhobar 1 is the mean itself.
    """
    near = similarities(state.latest, floor).get(client, 1.0) if summed else 1.0
    return Parameters(state.arrays, {**state.scalars, "rhobar": near})
