"""FedMF: matrix factorisation with private user vectors and an averaged item table.

Chai, Wang, Chen, Yang: Secure Federated Matrix Factorization. IEEE Intelligent Systems 2020. arXiv 1906.05108.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.strategies.aggregation import is_item_table, mean_of_moved_rows
from shared.strategies.local_client import Objective
from shared.strategies.strategy import Strategy, fit_plain

REGULARISATION = 0.03  # weight of the mean squared length of both sides' vectors


def l2_penalty(own: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
    """Computes the L2 penalty: weighted mean squared length of user and item vectors."""
    del received
    return REGULARISATION * ((own["embedding"] ** 2).sum(1).mean() + (own[ITEM_TABLE] ** 2).sum(1).mean())


def fedmf(method: MethodSettings) -> Strategy:
    """Builds FedMF: each user's vector is private to the silo, item rows are shared.

    A client is a silo with many users. Which rows a silo moved tells the aggregator which items it has, never which
    users have them.
    """
    # Paper: squared error of ratings; here: binary cross-entropy of observed pairs against sampled ones, because the
    # data are implicit.
    # Paper: gradients under homomorphic encryption; here: in the open, as it changes no number.
    del method
    fit = partial(fit_plain, objectives=(Objective(loss="bce", penalty=l2_penalty),))
    return Strategy("fedmf", shared=is_item_table, fit=fit, combine=mean_of_moved_rows, model="mf")
