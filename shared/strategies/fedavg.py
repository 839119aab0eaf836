"""FedAvg: every client trains, and all get the mean.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. arXiv 1602.05629.
"""

from __future__ import annotations

from shared.method.settings import MethodSettings
from shared.strategies.strategy import Strategy, all_exchanged


def fedavg(method: MethodSettings) -> Strategy:
    """Builds FedAvg: all tensors that the model can exchange are averaged.

    Of an encoder these are both MLPs. No scalar leaves, and no margin is used.
    """
    return Strategy("fedavg", shared=all_exchanged(method))
