"""FedAdam, FedYogi and FedGA: FedAvg whose server takes an adaptive step.

Every strategy has these by `server` too.

Reddi et al.: Adaptive Federated Optimization. ICLR 2021. arXiv 2003.00295.

Lou et al.: Efficient federated graph aggregation. Scientific Reports 15, 23394 (2025).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shared.method.settings import MethodSettings, Server
from shared.strategies.fedavg import fedavg
from shared.strategies.strategy import Strategy


def fedavg_with(name: str, server: Server) -> Callable[[MethodSettings], Strategy]:
    """Returns a builder of FedAvg with another name and this server optimiser."""
    return lambda method: replace(fedavg(method), name=name, server=server)


fedadam = fedavg_with("fedadam", "adam")
fedyogi = fedavg_with("fedyogi", "yogi")
fedga = fedavg_with("fedga", "ga")
