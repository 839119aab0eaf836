"""FedProx: FedAvg with a penalty on the distance from the received parameters.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. MLSys 2020. arXiv 1812.06127.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field

from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES
from shared.strategies.local_client import Objective
from shared.strategies.strategy import OwnSettings, Strategy, all_exchanged, fit_plain, read_strategy_settings

LEAST_STEPS = 2


class FedProxSettings(OwnSettings):
    """mu: weight of the proximal term; the paper tries .001 to 1."""

    mu: float = Field(0.01, ge=0, le=1e3)


@dataclass(frozen=True)
class ProximalPenalty:
    """mu / 2 |w - w_received|^2 over all that was received."""

    mu: float

    def __call__(self, own: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
        return self.mu / 2 * sum(((own[name] - received[name]) ** 2).sum() for name in received)


def fedprox(method: MethodSettings) -> Strategy:
    """Builds FedProx: whatever the model can exchange is averaged; no scalar leaves.

    Of an encoder both MLPs are exchanged.

    SettingsError if a round would be one step: the penalty's gradient is 0 at the start of training, so that it
    would be FedAvg.
    """
    settings = read_strategy_settings(FedProxSettings, method)
    if EXCHANGES[method.model].whole_batch and method.local_epochs < LEAST_STEPS:
        words = f"expected {LEAST_STEPS} or more with fedprox and {method.model}, because one step is fedavg's"
        raise SettingsError(f"local_epochs: {words}, got {method.local_epochs}")
    fit = partial(fit_plain, objectives=(Objective(penalty=ProximalPenalty(settings.mu)),))
    return Strategy("fedprox", shared=all_exchanged(method), fit=fit, settings=settings)
