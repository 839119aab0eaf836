"""A silo's part of the sums, against the statistics of all silos' data in one matrix."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.sums.basis import CommonBasis, make_basis_of_last_round, make_exact_basis
from client_service.sums.statistics import (
    catalogue_matrix,
    count_pairs,
    encode_sums,
    normalised_products,
    raw_products,
)
from client_service.sums.subspace_iteration import finish_basis, next_directions, start_directions
from shared.errors import DataError, ProtocolError, SettingsError
from shared.method.graph import degrees, normalise
from shared.method.parameters import State
from shared.method.settings import MethodSettings, method_settings
from shared.strategies.sum_strategy import sum_strategy
from shared.sums.item_basis import DEGREES, PAIRS, PRODUCTS
from shared.sums.sum import LIMIT, STEP, decode_fixed, encode_fixed

ITEMS, USERS, EXPONENT = 40, (30, 25, 12), 0.25
Sums = dict[str, NDArray[np.uint32]]


@pytest.fixture(scope="module")
def silos() -> list[sparse.csr_array]:
    """Three silos' interactions over one catalogue; popular items first."""
    generator = np.random.default_rng(5)
    popularity = 0.6 / np.arange(1, ITEMS + 1) ** 0.5
    return [sparse.csr_array((generator.random((users, ITEMS)) < popularity).astype(float)) for users in USERS]


@pytest.fixture(scope="module")
def pooled(silos: list[sparse.csr_array]) -> sparse.csr_array:
    return sparse.csr_array(sparse.vstack(silos))


def summed(parts: list[Sums]) -> Sums:
    return {name: np.sum([part[name] for part in parts], axis=0, dtype=np.uint32) for name in parts[0]}


def iterate(silos: list[sparse.csr_array], rank: int, rounds: int) -> CommonBasis:
    """What the clients of a basis run do, without a wire between them."""
    directions = start_directions(7, ITEMS, rank)
    sums = summed([encode_sums(x, raw_products(x, directions, EXPONENT), 3) for x in silos])
    for number in range(2, rounds + 1):
        known = sums[DEGREES].astype(np.int64)
        directions = next_directions(decode_fixed(sums[PRODUCTS]), known, EXPONENT, first=number == 2)
        sums = summed([encode_sums(x, normalised_products(x, directions, EXPONENT, known), 3) for x in silos])
    return make_basis_of_last_round(sums, directions, EXPONENT)


def test_pairs_of_all_silos_are_those_of_the_pooled_data(
    silos: list[sparse.csr_array], pooled: sparse.csr_array
) -> None:
    basis = make_exact_basis(summed([count_pairs(x) for x in silos]), EXPONENT)
    assert basis.pairs is not None
    np.testing.assert_array_equal(basis.pairs, (pooled.T @ pooled).toarray())
    np.testing.assert_array_equal(basis.degrees, degrees(pooled)[1])


@pytest.mark.parametrize("rows", [1, 7, 512])
def test_pairs_are_the_same_however_many_rows_are_counted_at_a_time(
    silos: list[sparse.csr_array], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.sums.statistics.ROWS", rows)
    above = np.triu_indices(ITEMS, 1)
    np.testing.assert_array_equal(count_pairs(silos[0])[PAIRS], (silos[0].T @ silos[0]).toarray()[above])


def test_an_iterated_basis_approaches_the_leading_frequencies_of_the_pooled_graph(
    silos: list[sparse.csr_array], pooled: sparse.csr_array
) -> None:
    graph = normalise(pooled, EXPONENT)
    values = np.sort(np.linalg.eigvalsh((graph.T @ graph).toarray()))[::-1]
    errors = [np.abs(iterate(silos, 16, rounds).values[:6] - values[:6]).max() for rounds in (2, 4, 12)]  # type: ignore[index]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


def test_a_full_rank_basis_is_exact_but_for_fixed_point(
    silos: list[sparse.csr_array], pooled: sparse.csr_array
) -> None:
    basis, graph = iterate(silos, ITEMS, 3), normalise(pooled, EXPONENT)
    assert basis.vectors is not None and basis.values is not None
    found = (basis.vectors * basis.values) @ basis.vectors.T
    np.testing.assert_allclose(found, (graph.T @ graph).toarray(), atol=5e-3)
    np.testing.assert_allclose(basis.vectors.T @ basis.vectors, np.eye(basis.vectors.shape[1]), atol=1e-5)


def test_nystroems_form_is_nearer_than_the_quotient_on_the_same_directions() -> None:
    generator = np.random.default_rng(1)
    orthonormal = np.linalg.qr(generator.standard_normal((60, 60)))[0]
    target = (orthonormal * np.linspace(4.0, 0.0, 60) ** 2) @ orthonormal.T
    directions = np.linalg.qr(target @ generator.standard_normal((60, 10)))[0]
    products = target @ directions
    vectors, values = finish_basis(directions, products)
    projected = directions @ (directions.T @ products) @ directions.T
    assert np.linalg.norm(target - (vectors * values) @ vectors.T) < np.linalg.norm(target - projected)


def test_directions_follow_from_the_seed() -> None:
    np.testing.assert_array_equal(start_directions(3, 20, 4), start_directions(3, 20, 4))
    assert not np.array_equal(start_directions(3, 20, 4), start_directions(4, 20, 4))


def test_products_are_in_fixed_point_and_negative_ones_too() -> None:
    values = np.array([[-1.5, 2.0**-17, 3.25], [0.0, -(2.0**-16), 7.0]])
    back = decode_fixed(encode_fixed(values, 4, "sum"))
    assert np.abs(back - values).max() <= STEP / 2
    total = encode_fixed(values, 4, "sum") + encode_fixed(-values, 4, "sum")
    np.testing.assert_array_equal(decode_fixed(total), 0.0)


@pytest.mark.parametrize("wrong", [LIMIT, np.nan, -np.inf])
def test_what_could_overflow_a_sum_is_refused_without_its_value(wrong: float) -> None:
    with pytest.raises(ProtocolError, match="expected values below 8192 in size, got 1 others"):
        encode_fixed(np.array([0.0, wrong]), 4, "sum")


def test_rare_pairs_are_handed_out_as_none() -> None:
    strategy = sum_strategy(method_settings(**{"basis.kind": "exact", "catalogue": 3, "basis.least_pairs": 3}))
    before = State({})
    sums = {DEGREES: np.array([5, 4, 1], np.uint32), PAIRS: np.array([4, 2, 3], np.uint32)}
    after = strategy.advance(before, State(sums))  # type: ignore[arg-type]
    np.testing.assert_array_equal(after.arrays[PAIRS], [4, 0, 3])
    np.testing.assert_array_equal(after.arrays[DEGREES], [5, 4, 1])
    np.testing.assert_array_equal(sums[PAIRS], [4, 2, 3])


def shard(places: NDArray[np.int64] | None) -> Shard:
    train = sparse.csr_array(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))
    none = sparse.csr_array((2, 3))
    return build_shard_from_matrices("a", ("u", "v"), ("i", "j", "k"), (train, none, none), places)


def test_items_are_counted_at_their_places_and_unlisted_ones_not_at_all() -> None:
    found = catalogue_matrix(shard(np.array([4, -1, 0])), 5)
    np.testing.assert_array_equal(found.toarray(), [[1, 0, 0, 0, 1], [1, 0, 0, 0, 0]])
    with pytest.raises(DataError, match="places in the common catalogue"):
        catalogue_matrix(shard(None), 5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"basis.kind": "exact"}, "catalogue: expected the size"),
        ({"basis.kind": "exact", "catalogue": 8193}, "expected 'iterated' for more than 8192 items"),
        ({"basis.kind": "iterated", "catalogue": 100}, "basis.rank: expected at most catalogue = 100, got 128"),
    ],
)
def test_a_basis_that_cannot_be_summed_is_refused(changes: dict[str, object], words: str) -> None:
    method: MethodSettings = method_settings(**changes)
    with pytest.raises(SettingsError, match=words):
        sum_strategy(method).declaration(method)
