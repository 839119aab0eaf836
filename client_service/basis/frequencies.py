"""A common basis and a silo's own graph -> the silo's rows of the frequencies of all silos' graph.

A coordinate means the same in every silo: the columns are the basis' own, signs included. Users are folded in.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from client_service.basis.common_basis import CommonBasis
from client_service.basis.scorers import EXPONENT, Places, frequencies_of
from client_service.models.start import CommonSpectrum
from shared.method.graph import degrees, power

NOISED_USERS = 0.5  # a noised sum weighs a user by 1 / d_u and leaves the items' degrees alone


def common_spectrum(basis: CommonBasis, places: Places, interactions: sparse.csr_array, cutoff: int) -> CommonSpectrum:
    """The lowest `cutoff` frequencies. places (N,): each item's row in the catalogue, -1 for one that is not listed."""
    values, vectors = (part[..., :cutoff] for part in frequencies_of(basis))
    listed = places >= 0
    items = np.where(listed[:, None], vectors[places], 0.0)
    by_user, by_item = degrees(interactions)
    item_degrees = np.where(listed, basis.degrees[places], by_item).astype(np.float64)
    singular, exponents = np.sqrt(values), exponents_of(basis)
    entered = power(item_degrees, -exponents[1])[:, None] * items
    users = power(by_user, -exponents[0])[:, None] * (interactions @ entered) / singular
    largest = float(singular[0])
    return CommonSpectrum(singular / largest, users, items, item_degrees, exponents, len(basis.degrees), largest)


def exponents_of(basis: CommonBasis) -> tuple[float, float]:
    """Of the degrees of users and of items in R, for W = R^T R."""
    if basis.kind == "exact":
        return 0.0, EXPONENT
    return basis.exponent or NOISED_USERS, basis.exponent
