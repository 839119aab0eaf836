"""What a secure round gives a client -> its parameters (Eq. 14), mixed where its own update is: here."""

from __future__ import annotations

from shared.errors import ProtocolError
from shared.method.exchanged import Parameters
from shared.strategies.strategy import Strategy


def split_rhobar(given: Parameters, *, floor: float = 0.0) -> tuple[float, Parameters]:
    """rhobar, and the mean by itself. ProtocolError for a rhobar that is none, or below the run's similarity_floor."""
    near = given.scalars.get("rhobar")
    if near is None or not floor <= near <= 1.0:
        raise ProtocolError(f"expected a rhobar from {floor:g} to 1 with the mean, got another or none")
    return near, Parameters(given.arrays, {name: one for name, one in given.scalars.items() if name != "rhobar"})


def mix_received(strategy: Strategy, given: Parameters, own: Parameters | None) -> Parameters:
    """`own`: what this client has sent in that round; without it, as with rhobar 1, the mean is all there is."""
    near, mean = split_rhobar(given)
    return strategy.mix(1.0, mean, mean) if own is None else strategy.mix(near, mean, own)
