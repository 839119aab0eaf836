"""FedProx: as FedAvg, and what is shared is held near to what was received while a client trains.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. MLSys 2020. arXiv 1812.06127.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import Strategy, all_exchanged

MU = 0.01  # weight of the proximal term; the paper tries .001 to 1


def near(own: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
    """mu / 2 |w - w_received|^2 over all that was received."""
    return MU / 2 * sum(((own[name] - received[name]) ** 2).sum() for name in received)


def fit_near(client: LocalClient, received: Parameters) -> Parameters:
    """FedAvg's half at the client with the penalty above."""
    client.load(received)
    client.train(Objective(penalty=near))
    return Parameters(client.arrays())


def fedprox(method: MethodSettings) -> Strategy:
    """Whatever the model can exchange is averaged, of an encoder both MLPs; no scalar leaves."""
    return Strategy("fedprox", shared=all_exchanged(method), fit=fit_near)
