"""FedPer: the base layers are averaged, the personalisation layers never leave a client.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019. arXiv 1912.00818.
"""

from __future__ import annotations

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.strategy import LocalClient, Strategy


def base_layers(name: str) -> bool:
    """The pooling MLP, which stands before the predictive one."""
    return name.startswith("pooling.")


def fit_base(client: LocalClient, received: Parameters) -> Parameters:
    """Train all layers together and send the base layers.

    # Paper: all layers in a row on one input; here: of the two MLPs the first is the base, because embeddings and
    # kernels before it belong to one client's graph and can have no mean.
    """
    client.load(received)
    client.train()
    return Parameters({name: value for name, value in client.arrays().items() if base_layers(name)})


def fedper(method: MethodSettings) -> Strategy:
    """The pooling MLP is averaged, the predictive MLP is private; no scalar leaves."""
    del method
    return Strategy("fedper", shared=base_layers, fit=fit_base)
