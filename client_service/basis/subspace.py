"""Subspace iteration on W = sum_c R_c^T R_c, of which each round gives the product with a block of directions.

The first round cannot know the degrees of all silos, so it sends A Omega with A = X^T D_u^-2e X. As W is
D_i^-e A D_i^-e, D_i^-e A Omega = W (D_i^e Omega): a product of W with directions that are as random, and no round is
lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.method.graph import power

Float64 = NDArray[np.float64]
RIDGE = 1e-10  # of the largest number in Q^T Y: below it directions are rounding


def start_directions(seed: int, items: int, rank: int) -> Float64:
    """Omega: orthonormal columns that follow from the run's seed alone, (N, r)."""
    return _orthonormalise(np.random.default_rng([seed, items, rank]).standard_normal((items, rank)))


def next_directions(products: Float64, all_degrees: NDArray[np.int64], exponent: float, *, first: bool) -> Float64:
    """Q of the next round from the sum of the last one, (N, r). first: that was the first one."""
    scale = power(all_degrees.astype(np.float64), -exponent)[:, None]
    return _orthonormalise(scale * products if first else products)


def finish_basis(directions: Float64, products: Float64, *, least: float = 0.0) -> tuple[Float64, Float64]:
    """Orthonormal vectors (N, r) and values (r,), descending, of W ~ Y (Q^T Y)^+ Y^T, with Y = W Q of the last round.

    Nystroem's form. It is never further from W than Q Q^T W Q Q^T, whose frequencies are those of a half round before.
    least: the size of the products' errors, which are all that Q^T Y has below it.
    """
    core = directions.T @ products
    values, rotation = np.linalg.eigh((core + core.T) / 2.0)
    kept = values > max(RIDGE * values[-1], least)
    root = products @ (rotation[:, kept] / np.sqrt(values[kept]))
    vectors, singular, _ = np.linalg.svd(root, full_matrices=False)
    return fix_signs(vectors), singular**2


def _orthonormalise(columns: Float64) -> Float64:
    found: Float64 = np.linalg.qr(columns)[0]
    return found


def fix_signs(vectors: Float64) -> Float64:
    """Each vector's largest entry is positive, so that a basis is the same wherever it is computed."""
    largest = vectors[np.argmax(np.abs(vectors), axis=0), np.arange(vectors.shape[1])]
    found: Float64 = vectors * np.where(largest < 0, -1.0, 1.0)
    return found
