"""EDLAE, the denoising linear autoencoder (Steck, NeurIPS 2020): EASE whose ridge grows with an item's frequency.

With X (M, N) the training edges, L = ridge I + p / (1 - p) diag(X^T X) and P = (X^T X + L)^-1, the scores are X B with
B = I - P diag(P)^-1. p: the share of a basket that is left out where the weights are learnt. It follows from the pairs
of all silos too, and brought nothing there beside EASE of the same pairs (docs/strategies.md).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from client_service.models.closed_form.ease import invert_definite, without_own
from client_service.models.closed_form.full_spectrum import DENSE_ITEMS
from client_service.models.closed_form.part import FEW_LOUDNESSES, ItemWeights, ScorerPart, TrainingGraph
from shared.method.parameters import Float32

RIDGE = 30.0  # in users, beside what grows with the frequency
USUAL_DROPOUT = 0.4


def edlae_of_pairs(pairs: Float32, dropout: float) -> Float32:
    """B, (N, N), from X^T X, (N, N)."""
    matrix = np.array(pairs, dtype=np.float32, order="C")
    matrix.flat[:: len(matrix) + 1] += dropout / (1.0 - dropout) * np.diag(pairs) + RIDGE
    return without_own(invert_definite(matrix, RIDGE))


def edlae_of_few_users(interactions: sparse.csr_array, dropout: float) -> Float32:
    """Woodbury's identity gives the same weights by an inverse of M rows.

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


def edlae_of_graph(graph: TrainingGraph, dropout: float) -> ItemWeights:
    """The smaller side of the graph gives the weights."""
    if graph.pairs_fit:
        return ItemWeights(edlae_of_pairs(graph.pairs, dropout))
    return ItemWeights(edlae_of_few_users(graph.interactions, dropout))


EDLAE = ScorerPart(
    "edlae",
    0.5,
    lambda graph: (USUAL_DROPOUT,) if graph.shape[1] <= DENSE_ITEMS else (),
    USUAL_DROPOUT,
    edlae_of_graph,
    loudnesses=FEW_LOUDNESSES,
    from_base=False,
)
