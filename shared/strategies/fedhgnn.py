"""FedHGNN: attention over meta-paths of a perturbed graph; item table and attention are averaged.

Yan, Cao, Wang, Yang, Liu, Yu, Wang, Shi: Federated Heterogeneous Graph Neural Network for Privacy-preserving
Recommendation. WWW 2024.
"""

from __future__ import annotations

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import Strategy
from shared.strategies.tables import mean_of_moved


def items_and_attention(name: str) -> bool:
    """The item table and the semantic attention's weights."""
    return name.startswith(("item.", "attention."))


def fit_ranked(client: LocalClient, received: Parameters) -> Parameters:
    """Train with BPR; table and attention are sent."""
    client.load(received)
    client.train(Objective(loss="bpr"))
    return Parameters(client.arrays())


def fedhgnn(method: MethodSettings) -> Strategy:
    """Private: user vectors and the graph, which is perturbed before training sees it. Shared: the item table and the
    attention over meta-paths, of which there are those between users and items alone, as no side data are used."""
    del method
    return Strategy(
        "fedhgnn",
        shared=items_and_attention,
        fit=fit_ranked,
        combine=mean_of_moved,
        model="metapath",
    )
