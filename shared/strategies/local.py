"""Local-only training: nothing leaves a client. It answers whether federation pays."""

from __future__ import annotations

from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import Strategy, nothing


def fit_alone(client: LocalClient, received: Parameters) -> Parameters:
    """Train as LPSFed does, with the local margin alone, and send nothing."""
    client.load(received)
    client.train(Objective(bias_aware=True))
    return Parameters({})


def local(method: MethodSettings) -> Strategy:
    """No parameter is shared and no scalar leaves."""
    del method
    return Strategy("local", shared=nothing, fit=fit_alone)
