"""EASE, the closed-form linear autoencoder, computed on the smaller side of the graph.

Embarrassingly shallow autoencoders for sparse data. Steck. WWW 2019. With X (M, N) the training edges and P = (X^T X +
ridge I)^-1, the scores are X B with B = I - P diag(P)^-1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from client_service.models.closed_form.full_spectrum import DENSE_ITEMS
from client_service.models.closed_form.scorer_part import ItemWeights, ScorerPart, SummedPairs, TrainingGraph
from shared.method.parameters import Float32

RIDGES = (30.0, 100.0, 300.0, 1000.0, 3000.0)
USUAL_RIDGE = 300.0  # in users
MOST_DOUBLINGS = 64  # of it, until sums are definite
OWN_SIDE = 6000  # users or items, whichever are fewer, up to which every ridge is tried
ONE_RIDGE_SIDE = 12_000  # and up to which the usual one alone: 576 MB, and as long as all of them at OWN_SIDE
BLOCK = 1024  # rows at a time
SPARSE = 0.1  # share of numbers that are not 0, below which a product by them alone is faster


@dataclass(frozen=True)
class UserWeights:
    """EASE scorer for graphs with fewer users than items.

    The scores are those of `ItemWeights`, x B, by P = (I - X^T K X) / ridge with K = (X X^T + ridge I)^-1.
    """

    inverse: Float32  # (M, M) K
    graph: sparse.csr_array  # (M, N) X
    turned: sparse.csr_array  # (N, M) X^T: scipy would turn it anew for each basket
    scale: Float32  # (N,) 1 / (ridge P_ii)

    def encode(self, baskets: sparse.csr_array) -> sparse.csr_array:
        """Returns the baskets (B, N) unchanged."""
        return baskets

    def decode(self, baskets: sparse.csr_array) -> Float32:
        """Computes the scores of all items, (B, N).

        f = x - x P diag(P)^-1.
        """
        common = baskets @ self.turned  # items that each basket has in common with each user
        few = common.nnz < SPARSE * common.shape[0] * common.shape[1]
        known: Float32 = (common if few else common.toarray()) @ self.inverse
        explained = np.asarray(known @ self.graph)
        found: Float32 = baskets.toarray()
        found -= (found - explained) * self.scale
        return found

    def contributions(self, basket: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32:
        """Returns the weights B of these rows and columns, (b, n)."""
        explained = np.asarray((self.turned[columns] @ self.inverse) @ self.turned[basket].T).T
        own = (basket[:, None] == columns).astype(np.float32)
        found: Float32 = own - (own - explained) * self.scale[columns]
        return found


def ease(train: sparse.csr_array, ridge: float, *, by_users: bool = False) -> ItemWeights | UserWeights:
    """Builds the EASE scorer of a training graph by one matrix inverse.

    The graph is (M, N); the inverse has min(M, N) rows. by_users: keep the users' side where there are fewer users than
    items, also where the weights of the items would fit.
    """
    binary = train.astype(np.float32)
    if train.shape[1] <= train.shape[0]:
        return ItemWeights(ease_weights(binary, ridge))
    inverse = _ridge_inverse(binary, ridge)
    turned = sparse.csr_array(binary.T)
    users = UserWeights(inverse, binary, turned, np.float32(1.0) / (1 - _leverages(binary, inverse)))
    return users if by_users or train.shape[1] > DENSE_ITEMS else ItemWeights(_item_weights(users))


def _item_weights(users: UserWeights) -> Float32:
    """Computes the weights of all items, (N, N), from the users' side.

    B = X^T K X / (1 - diag X^T K X), with a zero diagonal. Where it fits into memory it answers fastest.
    """
    weights: Float32 = users.turned @ (users.inverse @ users.graph)
    weights *= users.scale
    np.fill_diagonal(weights, 0.0)
    return weights


def ease_scores(train: sparse.csr_array, ridge: float) -> Callable[[NDArray[np.int64]], Float32]:
    """Builds the function that scores all items for user rows, (B,) to (B, N).

    It takes one inverse of n = min(M, N) rows: n^3 operations, 4 n^2 bytes.
    """
    binary = train.astype(np.float32)
    by_items = train.shape[1] <= train.shape[0]
    return _by_items(binary, ridge) if by_items else _by_users(binary, ridge)


def ease_weights(train: sparse.csr_array, ridge: float) -> Float32:
    """Computes the item weights B of EASE, (N, N), with a zero diagonal."""
    return remove_self_weights(_ridge_inverse(sparse.csr_array(train.T), ridge))


def ease_from_pairs(pairs: Float32, ridge: float) -> Float32:
    """Computes the item weights of EASE from item pair counts.

    Both B and X^T X are (N, N). Raises LinAlgError if the matrix is indefinite even with the ridge.
    """
    matrix = np.array(pairs, dtype=np.float32, order="C")
    matrix.flat[:: len(matrix) + 1] += ridge
    return remove_self_weights(invert_definite(matrix, ridge))


def _by_items(train: sparse.csr_array, ridge: float) -> Callable[[NDArray[np.int64]], Float32]:
    weights = ease_weights(train, ridge)
    return lambda rows: train[rows] @ weights


def _by_users(train: sparse.csr_array, ridge: float) -> Callable[[NDArray[np.int64]], Float32]:
    """Builds the score function on the users' side.

    X P = K X with K = (X X^T + ridge I)^-1, and diag P = (1 - diag X^T K X) / ridge (Woodbury).
    """
    inverse = _ridge_inverse(train, ridge)
    scale = ridge / (1 - _leverages(train, inverse))
    return lambda rows: train[rows].toarray() - (inverse[rows] @ train) * scale


def _leverages(train: sparse.csr_array, inverse: Float32) -> Float32:
    """Computes the leverages of the items, diag X^T K X, (N,)."""
    kept: Float32 = np.zeros(train.shape[1], np.float32)
    for start in range(0, train.shape[0], BLOCK):
        rows = train[start : start + BLOCK]
        kept += np.asarray(rows.multiply(inverse[start : start + BLOCK] @ train).sum(axis=0))
    return kept


def remove_self_weights(inverse: Float32) -> Float32:
    """Turns an inverse P into item weights with a zero diagonal, in place.

    B = I - P diag(P)^-1.
    """
    inverse /= -np.diag(inverse)
    np.fill_diagonal(inverse, 0.0)
    return inverse


def _ridge_inverse(rows: sparse.csr_array, ridge: float) -> Float32:
    """Computes the inverse of a Gram matrix with a ridge, (n, n).

    (R R^T + ridge I)^-1, in one matrix that is overwritten.
    """
    matrix = np.empty((rows.shape[0],) * 2, np.float32)
    across = sparse.csc_array(rows.T)
    for start in range(0, len(matrix), BLOCK):
        matrix[start : start + BLOCK] = (rows[start : start + BLOCK] @ across).toarray()
    matrix.flat[:: len(matrix) + 1] += ridge
    return invert_definite(matrix, ridge)


def invert_definite(matrix: Float32, ridge: float) -> Float32:
    """Inverts a symmetric positive definite matrix in place.

    Raises LinAlgError if it is not definite.
    """
    # LAPACK's matrices go by columns: to it this is the transpose, and its lower triangle our upper one.
    factor, failed = lapack.spotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
    inverse, singular = lapack.spotri(factor, lower=1, overwrite_c=1)
    if failed or singular:
        raise np.linalg.LinAlgError(f"expected a ridge that makes the matrix definite, got {ridge:g}")
    return _mirror_upper(inverse.T)


def _mirror_upper(matrix: Float32) -> Float32:
    """Copies the upper triangle of a matrix to the lower one, in place."""
    for start in range(0, len(matrix), BLOCK):
        here, below = slice(start, start + BLOCK), slice(start + BLOCK, None)
        upper = np.triu(matrix[here, here])
        matrix[here, here] = upper + np.triu(upper, 1).T
        matrix[below, here] = matrix[here, below].T
    return matrix


def ridges_for(graph: TrainingGraph) -> tuple[float, ...]:
    """Lists the ridges that validation tries for a graph of this size.

    The list is empty if an inverse takes too long.
    """
    side = min(graph.shape)
    if side <= OWN_SIDE:
        return RIDGES
    return (USUAL_RIDGE,) if side <= ONE_RIDGE_SIDE else ()


def make_ease(graph: TrainingGraph, ridge: float) -> ItemWeights | UserWeights:
    """Builds the EASE scorer of a graph.

    Where the item pairs fit, all ridges share them.
    """
    if graph.pairs_fit:
        return ItemWeights(ease_from_pairs(graph.pairs, ridge))
    return ease(graph.interactions, ridge)


def definite_ease(pairs: Float32) -> Float32:
    """Computes EASE from G, and doubles the ridge until the matrix is definite.

    Sums that were left out can make G indefinite. Raises LinAlgError after MOST_DOUBLINGS.
    """
    ridge = USUAL_RIDGE
    for _ in range(MOST_DOUBLINGS):
        try:
            return ease_from_pairs(pairs, ridge)
        except np.linalg.LinAlgError:
            ridge *= 2.0
    return ease_from_pairs(pairs, ridge)


def ease_from_sums(pairs: SummedPairs) -> ItemWeights:
    """Builds the EASE scorer from the item pairs of all silos.

    Every silo has the same ridge. A silo's own validation cannot choose a better one.
    """
    return ItemWeights(definite_ease(pairs.counts))


EASE = ScorerPart("ease", 2.0, ridges_for, USUAL_RIDGE, make_ease, from_sums=ease_from_sums)
