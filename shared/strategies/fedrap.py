"""FedRAP: item vectors of a common part, which is averaged, and a personal part, which is pushed away from it.

Li, Long, Zhou: Federated Recommendation with Additive Personalization. ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.method.exchange import ITEM_TABLE
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import Strategy
from shared.strategies.tables import mean_of_moved, only_items

DISTANCE = 0.01  # lambda: how much the two parts are held apart
SPARSITY = 0.01  # mu: how much the common part is held sparse


def apart(own: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
    """- lambda MSE(personal, common) + mu L1(common), each a mean over all entries of the table.

    # Paper: a sum for L1; here: a mean, because a sum grows with the catalogue and then zeroes the table.
    """
    del received
    common, personal = own[ITEM_TABLE], own["personal"]
    return SPARSITY * abs(common).mean() - DISTANCE * ((personal - common) ** 2).mean()


def fit_apart(client: LocalClient, received: Parameters) -> Parameters:
    """Train everything with binary cross-entropy and the two penalties; the common part alone is sent."""
    client.load(received)
    client.train(Objective(loss="bce", penalty=apart))
    return Parameters(client.arrays())


def fedrap(method: MethodSettings) -> Strategy:
    """Private: a score function for each user, and the personal part, one for the silo (in the original one for each
    user's device). Shared: the common part."""
    del method
    return Strategy(
        "fedrap",
        shared=only_items,
        fit=fit_apart,
        combine=mean_of_moved,
        model="fedrap",
    )
