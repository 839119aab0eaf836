"""PFedRec: private score functions, a shared item table, trained in turn; each silo ranks with the table it tuned.

Zhang, Long, Zhou, Yan, Zhang, Zhang, Yang: Dual Personalization on Federated Recommendation. IJCAI 2023.
"""

from __future__ import annotations

from functools import partial

from shared.method.settings import MethodSettings
from shared.strategies.aggregation import mean_of_moved, only_items
from shared.strategies.local_client import Objective
from shared.strategies.strategy import Strategy, fit_plain

# Paper: both steps on each batch; here: on whole epochs, because a batch of a silo holds pairs of many users.
IN_TURN = (Objective(loss="bce", only="embedding"), Objective(loss="bce", only="item."))
"""The round's epochs on the score functions, then as many on the item table."""


def pfedrec(method: MethodSettings) -> Strategy:
    """Private: a linear score function for each user (in the original the only thing that a device keeps), and the
    silo's tuned item vectors. Shared: the item table."""
    del method
    fit = partial(fit_plain, objectives=IN_TURN)
    return Strategy("pfedrec", shared=only_items, fit=fit, combine=mean_of_moved, model="pfedrec")
