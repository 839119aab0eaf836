"""FedHGNN: attention over meta-paths of a perturbed graph; table and attention are averaged.

Yan, Cao, Wang, Yang, Liu, Yu, Wang, Shi: Federated Heterogeneous Graph Neural Network for Privacy-preserving
Recommendation. WWW 2024.
"""

from __future__ import annotations

from functools import partial

from shared.method.settings import MethodSettings
from shared.strategies.aggregation import mean_of_moved_rows
from shared.strategies.local_client import Objective
from shared.strategies.strategy import Strategy, fit_plain


def is_item_or_attention(name: str) -> bool:
    """Tells whether a tensor is of the item table or the semantic attention."""
    return name.startswith(("item.", "attention."))


def fedhgnn(method: MethodSettings) -> Strategy:
    """Builds FedHGNN: the item table and the attention over meta-paths are shared.

    Private: user vectors and the graph, which is perturbed before training sees it. Meta-paths are between users and
    items alone, as no side data are used.
    """
    del method
    fit = partial(fit_plain, objectives=(Objective(loss="bpr"),))
    return Strategy("fedhgnn", shared=is_item_or_attention, fit=fit, combine=mean_of_moved_rows, model="metapath")
