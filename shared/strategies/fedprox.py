"""FedProx: as FedAvg, and what is shared is held near to what was received while a client trains.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. MLSys 2020. arXiv 1812.06127.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.own_settings import OwnSettings, read_own
from shared.strategies.strategy import Strategy, all_exchanged


class FedProxSettings(OwnSettings):
    """mu: weight of the proximal term; the paper tries .001 to 1."""

    mu: float = Field(0.01, ge=0, le=1e3)


@dataclass(frozen=True)
class ProximalPenalty:
    """mu / 2 |w - w_received|^2 over all that was received."""

    mu: float

    def __call__(self, own: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
        return self.mu / 2 * sum(((own[name] - received[name]) ** 2).sum() for name in received)


def fit_near(client: LocalClient, received: Parameters, *, mu: float) -> Parameters:
    """FedAvg's half at the client with the penalty above."""
    client.load(received)
    client.train(Objective(penalty=ProximalPenalty(mu)))
    return Parameters(client.arrays())


def fedprox(method: MethodSettings) -> Strategy:
    """Whatever the model can exchange is averaged, of an encoder both MLPs; no scalar leaves."""
    settings = read_own(FedProxSettings, method)
    fit = partial(fit_near, mu=settings.mu)
    return Strategy("fedprox", shared=all_exchanged(method), fit=fit, settings=settings)
