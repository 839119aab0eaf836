"""Silos drawn at random from a real data set, and what the sums of their statistics are, with noise and without."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.privacy.basis_guard import noise_deviation
from shared.method.graph import degrees, power

Float64 = NDArray[np.float64]
Csr = sparse.csr_array
DELTA, TARGETS = 1e-5, 150  # users in the sum, and as many who are not; pairs alike
RARE_PAIR = 2  # users of the population at most


@dataclass(frozen=True, eq=False)
class Everybody:
    """The population's X, (M, N), and what an attacker who knows it computes once."""

    matrix: Csr

    @cached_property
    def counts(self) -> Float64:
        return pair_counts(self.matrix)

    @cached_property
    def weighted(self) -> Float64:
        return weighted_pairs(self.matrix)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = degrees(self.matrix)[1].astype(np.int64)
        return found

    @cached_property
    def rare_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns of the pairs that few users have."""
        few = np.triu((self.counts > 0) & (self.counts <= RARE_PAIR), 1)
        rows, columns = np.nonzero(few)
        return rows, columns


@dataclass(frozen=True, eq=False)
class Drawn:
    """members: rows of each silo's users."""

    everybody: Everybody
    members: tuple[NDArray[np.int64], ...]
    seed: int

    @cached_property
    def inside(self) -> Csr:
        """X of all silos in the sum."""
        return Csr(self.everybody.matrix[np.concatenate(self.members)])

    def noised_sum(self, epsilon: float) -> Float64:
        """H of all silos in the sum with the noise of one release."""
        return add_noise(weighted_pairs(self.inside), epsilon, [self.seed, len(self.members)])

    @cached_property
    def share(self) -> float:
        return self.inside.shape[0] / self.everybody.matrix.shape[0]

    @cached_property
    def targets(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Users, and who of them is in the sum: as many who are as who are not."""
        rng, there = np.random.default_rng([self.seed, 1]), np.concatenate(self.members)
        absent = np.setdiff1d(np.arange(self.everybody.matrix.shape[0]), there)
        count = min(TARGETS, len(there))
        users = np.concatenate([rng.choice(there, count, replace=False), rng.choice(absent, count, replace=False)])
        return users, np.arange(len(users)) < count


def draw_silos(everybody: Everybody, silos: int, users: int, seed: int) -> Drawn:
    order = np.random.default_rng([seed, silos]).permutation(everybody.matrix.shape[0])
    return Drawn(everybody, tuple(order[silo * users : (silo + 1) * users] for silo in range(silos)), seed)


def pair_counts(interactions: Csr) -> Float64:
    found: Float64 = (interactions.T @ interactions).toarray()
    return found


def weighted_pairs(interactions: Csr) -> Float64:
    found: Float64 = (
        interactions.T @ sparse.diags_array(power(degrees(interactions)[0], -1.0)) @ interactions
    ).toarray()
    return found


def add_noise(weighted: Float64, epsilon: float, seed: list[int]) -> Float64:
    noise = np.random.default_rng([*seed, 2]).standard_normal(weighted.shape)
    found: Float64 = weighted + noise_deviation(epsilon, DELTA) / 2.0 * (noise + noise.T)
    return found
