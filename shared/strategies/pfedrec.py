"""PFedRec: private score functions, a shared item table, trained in turn; each silo ranks with the table it tuned.

Zhang, Long, Zhou, Yan, Zhang, Zhang, Yang: Dual Personalization on Federated Recommendation. IJCAI 2023.
"""

from __future__ import annotations

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import Strategy
from shared.strategies.tables import mean_of_moved, only_items


def fit_in_turn(client: LocalClient, received: Parameters) -> Parameters:
    """The round's epochs on the score functions, then as many on the item table."""
    # Paper: both steps on each batch; here: on whole epochs, because a batch of a silo holds pairs of many users.
    client.load(received)
    client.train(Objective(loss="bce", only="embedding"))
    client.train(Objective(loss="bce", only="item."))
    return Parameters(client.arrays())


def pfedrec(method: MethodSettings) -> Strategy:
    """Private: a linear score function for each user (in the original the only thing that a device keeps), and the
    silo's tuned item vectors. Shared: the item table."""
    del method
    return Strategy(
        "pfedrec",
        shared=only_items,
        fit=fit_in_turn,
        combine=mean_of_moved,
        model="pfedrec",
    )
