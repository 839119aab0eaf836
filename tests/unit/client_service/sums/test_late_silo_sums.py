"""A silo that is in no sum adds its own pairs to what it was given; what that gives is the sum over all silos."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.sums.basis import CommonBasis, make_exact_basis
from client_service.sums.statistics import count_pairs, measure_covered_share, restrict_to_training
from shared.method.graph import degrees, normalise
from shared.method.parameters import Arrays
from shared.sums.item_basis import PAIRS

ITEMS, USERS, EXPONENT = 30, (40, 35, 12), 0.25


@pytest.fixture
def silos() -> list[sparse.csr_array]:
    generator = np.random.default_rng(5)
    popularity = 0.7 / np.arange(1, ITEMS + 1) ** 0.5
    return [sparse.csr_array((generator.random((users, ITEMS)) < popularity).astype(float)) for users in USERS]


def as_shard(own: sparse.csr_array) -> Shard:
    users = [f"u{user:02}" for user in range(own.shape[0])]
    items = [f"i{item:02}" for item in range(ITEMS)]
    nothing = sparse.csr_array(own.shape)
    shard = build_shard_from_matrices("late", users, items, (own, nothing, nothing))
    return replace(shard, places=np.arange(ITEMS))


def directions_of(matrices: list[sparse.csr_array], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """W of these silos together, and their degrees. noised: users are weighed, items are not."""
    pooled = sparse.csr_array(sparse.vstack(matrices))
    by_user, by_item = degrees(pooled)
    if kind == "iterated":
        scaled = normalise(pooled, EXPONENT)
    else:
        scaled = sparse.csr_array(sparse.diags_array(np.where(by_user > 0, np.maximum(by_user, 1) ** -0.5, 0)) @ pooled)
    return (scaled.T @ scaled).toarray(), by_item.astype(np.int64)


@pytest.mark.parametrize(("kind", "rank"), [("iterated", ITEMS), ("noised", ITEMS), ("iterated", 12)])
def test_directions_with_its_own_are_those_of_all_silos(silos: list[sparse.csr_array], kind: str, rank: int) -> None:
    *members, own = silos
    graph, by_item = directions_of(members, kind)
    values, vectors = np.linalg.eigh(graph)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank].astype(np.float32)
    exponent = EXPONENT if kind == "iterated" else 0.0
    basis = CommonBasis("iterated", exponent, by_item, vectors=vectors, values=values, included=False)
    found = restrict_to_training(basis, as_shard(own))
    assert found.included and found.values is not None and found.vectors is not None
    expected, degrees_of_all = directions_of(silos, kind)
    np.testing.assert_array_equal(found.degrees, degrees_of_all)
    got = (found.vectors * found.values) @ found.vectors.T
    if rank == ITEMS:
        np.testing.assert_allclose(got, expected, atol=2e-5 * np.abs(expected).max())
    else:  # nearer to all silos than what was given
        assert len(found.values) == rank
        given = (vectors * values) @ vectors.T
        assert np.linalg.norm(got - expected) < 0.9 * np.linalg.norm(given - expected)


def test_pairs_that_are_hidden_stay_so_unless_its_own_users_alone_are_enough(silos: list[sparse.csr_array]) -> None:
    """What is hidden of the others is not known; the silo's own count of such a pair stands for itself."""
    *members, own = silos
    sums: Arrays = {
        name: np.sum([count_pairs(one)[name] for one in members], axis=0, dtype=np.uint32) for name in count_pairs(own)
    }
    least = int(np.median(sums[PAIRS]))
    hidden = {**sums, PAIRS: np.where(sums[PAIRS] < least, 0, sums[PAIRS]).astype(np.uint32)}
    basis = replace(make_exact_basis(hidden, EXPONENT), included=False)
    found = restrict_to_training(basis, as_shard(own))
    assert found.pairs is not None and basis.pairs is not None
    counts = (own.T @ own).toarray()
    apart = ~np.eye(ITEMS, dtype=bool)
    seen = (basis.pairs > 0) & apart
    np.testing.assert_array_equal(found.pairs[seen], basis.pairs[seen] + counts[seen])
    below = ~seen & apart
    np.testing.assert_array_equal(found.pairs[below], np.where(counts[below] >= least, counts[below], 0))


def test_what_others_tell_of_its_items_counts_and_its_own_pairs_do_not(silos: list[sparse.csr_array]) -> None:
    *_, own = silos
    nothing = {name: np.zeros_like(value) for name, value in count_pairs(own).items()}
    vectors, values = np.eye(ITEMS, 3, dtype=np.float32), np.ones(3)
    unknown = CommonBasis("iterated", EXPONENT, np.zeros(ITEMS, np.int64), vectors=vectors, values=values)
    for basis in (make_exact_basis(nothing, EXPONENT), unknown):
        assert measure_covered_share(replace(basis, included=False), as_shard(own)) == 0.0
    others = make_exact_basis(count_pairs(silos[0]), EXPONENT)
    assert measure_covered_share(replace(others, included=False), as_shard(own)) > 0.9
