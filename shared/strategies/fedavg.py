"""FedAvg: every client trains, everybody gets the mean.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. arXiv 1602.05629.
"""

from __future__ import annotations

from shared.method.settings import MethodSettings
from shared.strategies.strategy import Strategy, both_mlps


def fedavg(method: MethodSettings) -> Strategy:
    """Both MLPs are averaged; no scalar leaves, no popularity margin is used (the paper's baseline)."""
    del method
    return Strategy("fedavg", shared=both_mlps)
