"""RP3beta, a random walk of three steps from a user, damped by the items' popularity.

Updatable, accurate, diverse, and scalable recommendations for interactive applications. Paudel et al. TiiS 2017. From
an item to one of its users and on to one of that user's items: B = D_i^-1 X^T D_u^-1 X D_i^-beta without its diagonal.
From sums of pairs follows D_i^-1 G D_i^-beta, G = X^T X, in which all users weigh alike: it brought nothing beside EASE
and the filter of the same pairs (docs/strategies.md).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from client_service.models.closed_form.full_spectrum import DENSE_ITEMS
from client_service.models.closed_form.scorer_part import FEW_LOUDNESSES, ItemWeights, ScorerPart, TrainingGraph
from shared.method.graph import degree_power, degrees

BETA = 0.4


def make_rp3beta(graph: TrainingGraph, beta: float) -> ItemWeights:
    """Builds the RP3beta scorer of a graph; a user of few items counts more."""
    by_user, by_item = degrees(graph.interactions)
    walked = sparse.csr_array(sparse.diags_array(degree_power(by_user, -1.0)) @ graph.interactions).astype(np.float32)
    weights = sparse.csr_array(graph.interactions.T.astype(np.float32) @ walked).toarray()
    weights *= degree_power(by_item, -1.0).astype(np.float32)[:, None]
    weights *= degree_power(by_item, -beta).astype(np.float32)
    np.fill_diagonal(weights, 0.0)
    return ItemWeights(weights)


RP3BETA = ScorerPart(
    "rp3beta",
    0.25,
    lambda graph: (BETA,) if graph.shape[1] <= DENSE_ITEMS else (),
    BETA,
    make_rp3beta,
    loudnesses=FEW_LOUDNESSES,
    from_base=False,
)
