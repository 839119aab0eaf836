"""An iteration that keeps the products of all rounds, two in a word: what it finds, and what its sums can hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from client_service.sums.basis import CommonBasis, make_basis_of_last_round, make_iterated_basis
from client_service.sums.statistics import begin_sums, encode_sums, normalised_products, pack_sums, raw_products
from client_service.sums.subspace_iteration import (
    ExploredSubspace,
    explore,
    first_directions,
    next_directions,
    pack,
    start_directions,
    unpack,
)
from shared.errors import SettingsError
from shared.method.graph import degrees, normalise
from shared.method.settings import BasisSettings, method_settings
from shared.strategies.sum_strategy import sum_strategy
from shared.sums.item_basis import DEGREES, ITERATED, PACKED, PRODUCTS
from shared.sums.sum import UInt32, decode_fixed

ITEMS, USERS, EXPONENT, SEED, RANK = 150, (140, 90, 60, 30), 0.25, 7, 16
Sums = dict[str, UInt32]


@pytest.fixture(scope="module")
def silos() -> list[sparse.csr_array]:
    """Four silos' interactions over one catalogue; popular items first, and the last one is nobody's."""
    generator = np.random.default_rng(5)
    popularity = 0.9 / np.arange(1, ITEMS + 1) ** 0.6
    popularity[-1] = 0.0
    return [sparse.csr_array((generator.random((users, ITEMS)) < popularity).astype(float)) for users in USERS]


@pytest.fixture(scope="module")
def graph(silos: list[sparse.csr_array]) -> NDArray[np.float64]:
    """W of all silos' data."""
    scaled = normalise(sparse.csr_array(sparse.vstack(silos)), EXPONENT)
    found: NDArray[np.float64] = (scaled.T @ scaled).toarray()
    return found


def summed(parts: Sequence[Sums]) -> Sums:
    return {name: np.sum([part[name] for part in parts], axis=0, dtype=np.uint32) for name in parts[0]}


def first_sums(silos: list[sparse.csr_array], words: int) -> Sums:
    start = first_directions(SEED, ITEMS, words)
    parts = [begin_sums(x, start, EXPONENT, len(silos)) for x in silos]
    return summed(parts)


def all_sums(silos: list[sparse.csr_array], words: int, rounds: int) -> list[Sums]:
    """What the clients of a basis run sum, without a wire between them."""
    found = [first_sums(silos, words)]
    for _ in range(1, rounds):
        known = explore(found, EXPONENT, SEED)
        found.append(summed([pack_sums(x, known) for x in silos]))
    return found


def explored(silos: list[sparse.csr_array], words: int, rounds: int) -> ExploredSubspace:
    return explore(all_sums(silos, words, rounds), EXPONENT, SEED)


def last_round(silos: list[sparse.csr_array], rank: int, rounds: int) -> CommonBasis:
    """The basis of the last round's products alone."""
    directions = start_directions(SEED, ITEMS, rank)
    sums = summed([encode_sums(x, raw_products(x, directions, EXPONENT), 4) for x in silos])
    for number in range(2, rounds + 1):
        known = sums[DEGREES].astype(np.int64)
        directions = next_directions(decode_fixed(sums[PRODUCTS]), known, EXPONENT, first=number == 2)
        sums = summed([encode_sums(x, normalised_products(x, directions, EXPONENT, known), 4) for x in silos])
    return make_basis_of_last_round(sums, directions, EXPONENT)


def captured(graph: NDArray[np.float64], vectors: NDArray[np.float32] | None) -> float:
    """||R V||^2 against that of the leading vectors."""
    assert vectors is not None
    leading = np.sort(np.linalg.eigvalsh(graph))[::-1][: vectors.shape[1]].sum()
    return float(np.trace(vectors.T @ graph @ vectors) / leading)


def test_directions_stay_orthonormal_and_products_are_those_of_the_pooled_graph(
    silos: list[sparse.csr_array], graph: NDArray[np.float64]
) -> None:
    known = explored(silos, 8, 4)
    assert known.directions.shape == (ITEMS, 8 * 7 - 1)
    np.testing.assert_allclose(known.directions.T @ known.directions, np.eye(55), atol=1e-9)
    np.testing.assert_allclose(known.products, graph @ known.directions, atol=2 * len(silos) * known.steps.max())


def test_half_the_bytes_find_more_than_the_last_rounds_products(
    silos: list[sparse.csr_array], graph: NDArray[np.float64]
) -> None:
    packed = explored(silos, RANK // 2, 3)
    basis = make_iterated_basis(packed, all_sums(silos, 2, 1)[0][DEGREES], RANK)
    assert basis.vectors is not None and basis.values is not None
    assert basis.vectors.shape == (ITEMS, RANK) and (np.diff(basis.values) <= 0).all()
    np.testing.assert_allclose(basis.vectors.T @ basis.vectors, np.eye(RANK), atol=1e-5)
    np.testing.assert_array_equal(basis.degrees, degrees(sparse.csr_array(sparse.vstack(silos)))[1])
    assert captured(graph, basis.vectors) > captured(graph, last_round(silos, RANK, 3).vectors)


@pytest.mark.parametrize(("words", "exponent"), [(3, 0.25), (8, 0.25), (2, 0.0), (2, 0.5)])
def test_no_product_can_exceed_what_sixteen_bits_hold(
    silos: list[sparse.csr_array], words: int, exponent: float
) -> None:
    """The largest numbers that there can be: of an item's own row, and of the leading vector."""
    scaled = normalise(sparse.csr_array(sparse.vstack(silos)), exponent)
    graph = (scaled.T @ scaled).toarray()
    start = first_directions(SEED, ITEMS, words)
    sums = summed([begin_sums(x, start, exponent, 4) for x in silos])
    steps = explore([sums], exponent, SEED).steps
    bound = np.linalg.norm(graph, axis=1, keepdims=True)
    assert (bound / steps + len(silos) / 2 < 2**15).all()


def test_two_numbers_share_a_word_and_parts_may_wrap_around() -> None:
    generator = np.random.default_rng(3)
    totals = generator.integers(-(2**15), 2**15, (50, 6))
    parts = [generator.integers(-(2**40), 2**40, (50, 6)) for _ in range(5)]
    parts.append(totals - sum(parts))
    words = np.sum([pack(part.astype(np.float64)) for part in parts], axis=0, dtype=np.uint32)
    assert words.shape == (50, 3)
    np.testing.assert_array_equal(unpack(words), totals)


def test_halves_are_rounded_to_the_nearest() -> None:
    np.testing.assert_array_equal(unpack(pack(np.array([[-1.6, 2.4], [0.4, -0.4]]))), [[-2, 2], [0, 0]])


def test_frequencies_below_the_rounding_are_left_out(silos: list[sparse.csr_array]) -> None:
    few = [sparse.csr_array(silo[:3]) for silo in silos]  # 12 users: W has 12 frequencies
    vectors, values = explored(few, 8, 3).finish(40)
    assert vectors.shape == (ITEMS, 12) and values.shape == (12,)


def test_the_declaration_has_the_words_of_an_item() -> None:
    method = method_settings(**{"basis.kind": "iterated", "basis.words": 4, "basis.rank": 16, "catalogue": 90})
    tensors = {spec.name: (spec.dtype, spec.shape) for spec in sum_strategy(method).declaration(method).tensors}
    assert tensors == {DEGREES: ("U32", (90,)), PACKED: ("U32", (90, 4))}


@pytest.mark.parametrize(("words", "rank"), [(40, 16), (3, 16)], ids=["more than items", "fewer than the rank"])
def test_numbers_of_directions_that_cannot_be_are_refused(words: int, rank: int) -> None:
    method = method_settings(**{"basis.kind": "iterated", "basis.words": words, "basis.rank": rank, "catalogue": 90})
    with pytest.raises(
        SettingsError, match=r"basis\.words: expected from basis\.rank = 16 to catalogue = 90 directions"
    ):
        sum_strategy(method).declaration(method)


def test_settings_without_words_are_as_they_were() -> None:
    assert "words" not in BasisSettings(kind="iterated").model_dump()
    assert ITERATED.sums_needed(BasisSettings(kind="iterated", rounds=5)) == 2
    assert ITERATED.sums_needed(BasisSettings(kind="iterated", rounds=5, words=3)) == 5
