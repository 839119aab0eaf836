"""Leading singular vectors in blocks: as exact as said, on graphs that are hard and in little memory too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

import shared.cores
from shared.method import spectrum
from shared.method import spectrum as block_lanczos
from shared.method.graph import normalise
from shared.method.spectrum import RANKING, TRAINING, Accuracy, leading_vectors, low_spectrum

Graph = sparse.csr_array


def assert_leading(matrix: Graph, found: np.ndarray, count: int, accuracy: Accuracy = TRAINING) -> None:
    """Orthonormal, in descending order, and each an eigenvector of A^T A to within the tolerance."""
    singular = np.linalg.svd(matrix.toarray(), compute_uv=False)
    rounding = 1e-12 if accuracy is TRAINING else 1e-5
    np.testing.assert_allclose(found.T @ found, np.eye(count), atol=rounding)
    errors = matrix.T @ (matrix @ found) - found * singular[:count] ** 2
    assert np.linalg.norm(errors, axis=0).max() <= 2 * accuracy.tolerance * singular[0] ** 2


@pytest.mark.parametrize("exponent", [0.5, 0.25])
def test_each_vector_is_one_to_within_the_tolerance(drawn: Callable[..., Graph], exponent: float) -> None:
    matrix = normalise(drawn(420, 300, 0.05, seed=3), exponent)
    assert_leading(matrix, leading_vectors(matrix, 20), 20)


def test_vectors_that_only_rank_are_as_exact_as_said_from_fewer_products(
    drawn: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, grown, grow = normalise(drawn(420, 900, 0.05, seed=3), 0.25), list[int](), block_lanczos._Basis.grow
    monkeypatch.setattr(block_lanczos._Basis, "grow", lambda basis: grown.append(1) or grow(basis))
    blocks = []
    for accuracy in (TRAINING, RANKING):
        assert_leading(matrix, leading_vectors(matrix, 64, accuracy), 64, accuracy)
        blocks.append(len(grown))
        grown.clear()
    assert blocks[1] < blocks[0]


def test_a_basis_that_does_not_fit_begins_anew_and_ends_as_exact(
    drawn: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, restarts = normalise(drawn(420, 300, 0.05, seed=3)), []
    restart = block_lanczos._Basis.restart
    monkeypatch.setattr(block_lanczos, "MOST_NUMBERS", 0)
    monkeypatch.setattr(block_lanczos._Basis, "restart", lambda *given: restarts.append(1) or restart(*given))
    assert_leading(matrix, leading_vectors(matrix, 32), 32)
    assert restarts


def test_what_occurs_twice_is_found_twice_and_few_directions_are_no_trouble(drawn: Callable[..., Graph]) -> None:
    block = drawn(150, 120, 0.08, seed=4)
    twice = normalise(sparse.csr_array(sparse.block_diag((block, block))))
    assert_leading(twice, leading_vectors(twice, 16), 16)
    few = sparse.csr_array(np.outer(np.ones(300), np.arange(200) % 3 == 0).astype(float))
    values = np.linalg.norm(few @ leading_vectors(few, 16), axis=0)
    np.testing.assert_allclose(values, [np.sqrt(300 * 67)] + [0.0] * 15, atol=1e-6)


def test_the_bits_are_the_same_on_any_number_of_cores(
    drawn: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, found = normalise(drawn(420, 300, 0.05, seed=3)), []
    for cores in (1, 3):
        monkeypatch.setattr(shared.cores, "available_cores", lambda cores=cores: cores)
        found.append(leading_vectors(matrix, 20))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("shape", [(420, 300), (300, 420)])
def test_a_spectrum_found_in_blocks_is_the_dense_one(
    drawn: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    graph = drawn(*shape, 0.05, seed=5)
    monkeypatch.setattr(spectrum, "DENSE_LIMIT", 500)
    dense = low_spectrum(graph, 20)
    monkeypatch.setattr(spectrum, "DENSE_LIMIT", 0)
    monkeypatch.setattr(spectrum, "BLOCK_COUNT", 1)
    monkeypatch.setattr(spectrum, "BLOCK_SHARE", 1)
    found = low_spectrum(graph, 20)
    np.testing.assert_allclose(found.singular, dense.singular, atol=1e-12)
    np.testing.assert_allclose(found.basis, dense.basis, atol=1e-6)
