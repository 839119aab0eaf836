"""EDLAE, the denoising linear autoencoder: EASE whose ridge grows with an item's frequency.

Autoencoders that don't overfit towards the identity. Steck. NeurIPS 2020. With X (M, N) the training edges, L = ridge I
+ p / (1 - p) diag(X^T X) and P = (X^T X + L)^-1, the scores are X B with B = I - P diag(P)^-1. p: share of a basket
that is dropped while the weights are learnt. It could be computed from the pairs of all silos too, where it brought
nothing beside EASE of the same pairs (docs/strategies.md).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from client_service.models.closed_form.ease import invert_definite, remove_self_weights
from client_service.models.closed_form.full_spectrum import DENSE_ITEMS
from client_service.models.closed_form.scorer_part import FEW_LOUDNESSES, ItemWeights, ScorerPart, TrainingGraph
from shared.method.parameters import Float32

RIDGE = 30.0  # in users, beside what grows with the frequency
USUAL_DROPOUT = 0.4


def edlae_from_pairs(pairs: Float32, dropout: float) -> Float32:
    """Computes the item weights B of EDLAE, (N, N), from item pair counts.

    pairs: X^T X, (N, N).
    """
    matrix = np.array(pairs, dtype=np.float32, order="C")
    matrix.flat[:: len(matrix) + 1] += dropout / (1.0 - dropout) * np.diag(pairs) + RIDGE
    return remove_self_weights(invert_definite(matrix, RIDGE))


def edlae_by_users(interactions: sparse.csr_array, dropout: float) -> Float32:
    """Computes the item weights of EDLAE, (N, N), by an inverse of M rows (Woodbury).

    B = L^-1 X^T K X / (1 - d) with K = (I + X L^-1 X^T)^-1 and d the diagonal of L^-1 X^T K X.
    """
    binary = interactions.astype(np.float32)
    strength = dropout / (1.0 - dropout) * binary.sum(axis=0) + np.float32(RIDGE)
    entered = sparse.csr_array(binary / strength[None, :])
    matrix = np.ascontiguousarray((binary @ entered.T).toarray(), dtype=np.float32)
    matrix.flat[:: len(matrix) + 1] += 1.0
    weights: Float32 = np.asarray(sparse.csr_array(entered.T) @ (invert_definite(matrix, 1.0) @ binary))
    weights /= 1.0 - np.diag(weights)
    np.fill_diagonal(weights, 0.0)
    return weights


def make_edlae(graph: TrainingGraph, dropout: float) -> ItemWeights:
    """Builds the EDLAE scorer of a graph, on its smaller side."""
    if graph.pairs_fit:
        return ItemWeights(edlae_from_pairs(graph.pairs, dropout))
    return ItemWeights(edlae_by_users(graph.interactions, dropout))


EDLAE = ScorerPart(
    "edlae",
    0.5,
    lambda graph: (USUAL_DROPOUT,) if graph.shape[1] <= DENSE_ITEMS else (),
    USUAL_DROPOUT,
    make_edlae,
    loudnesses=FEW_LOUDNESSES,
    from_base=False,
)
