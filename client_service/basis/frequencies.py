"""A common basis and a silo's own graph -> the silo's rows of the frequencies of all silos' graph.

A coordinate means the same in every silo: the columns are the basis' own, signs included. Users are folded in.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from client_service.basis.common_basis import CommonBasis
from client_service.basis.scorers import EXPONENT, Places, frequencies_of
from client_service.models.start import CommonSpectrum
from shared.method.graph import Float64, degrees, power

NOISED_USERS = 0.5  # a noised sum weighs a user by 1 / d_u and leaves the items' degrees alone


def common_spectrum(
    basis: CommonBasis, places: Places, interactions: sparse.csr_array, cutoff: int, frame: Float64 | None = None
) -> CommonSpectrum:
    """The lowest `cutoff` frequencies. places (N,): each item's row in the catalogue, -1 for one that is not listed.

    frame: vectors (C, r) that all silos have; then each column is the one most like the frame's, of its sign. So a
    column means nearly the same where each silo takes its own held-out pairs out of the sums.
    """
    values, vectors = frequencies_of(basis)
    if frame is not None:
        values, vectors = _match_columns(values, vectors, frame)
    values, vectors = values[:cutoff], vectors[:, :cutoff]
    listed = places >= 0
    items = np.where(listed[:, None], vectors[places], 0.0)
    by_user, by_item = degrees(interactions)
    item_degrees = np.where(listed, basis.degrees[places], by_item).astype(np.float64)
    singular, exponents = np.sqrt(values), exponents_of(basis)
    entered = power(item_degrees, -exponents[1])[:, None] * items
    users = power(by_user, -exponents[0])[:, None] * (interactions @ entered) / singular
    largest = float(singular.max())
    return CommonSpectrum(singular / largest, users, items, item_degrees, exponents, len(basis.degrees), largest)


def _match_columns(values: Float64, vectors: Float64, frame: Float64) -> tuple[Float64, Float64]:
    """In the order of the frame's columns: frequencies that are nearly equal may change places."""
    alike = frame.T @ vectors
    rows, columns = linear_sum_assignment(-np.abs(alike))
    signs = np.where(alike[rows, columns] < 0, -1.0, 1.0)
    return values[columns], vectors[:, columns] * signs


def exponents_of(basis: CommonBasis) -> tuple[float, float]:
    """Of the degrees of users and of items in R, for W = R^T R."""
    if basis.kind == "exact":
        return 0.0, EXPONENT
    return basis.exponent or NOISED_USERS, basis.exponent
