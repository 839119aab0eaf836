"""FedAvg: every client trains, everybody gets the mean.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. arXiv 1602.05629.
"""

from __future__ import annotations

from shared.method.settings import MethodSettings
from shared.strategies.strategy import Strategy, all_exchanged


def fedavg(method: MethodSettings) -> Strategy:
    """Whatever the model can exchange is averaged, of an encoder both MLPs; no scalar leaves, no margin is used."""
    return Strategy("fedavg", shared=all_exchanged(method))
