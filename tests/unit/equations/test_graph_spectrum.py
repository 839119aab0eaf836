"""Step 1 (Section 3.2, Eq. 1-2): the bipartite shortcut gives the low end of the normalised Laplacian.

Everything is held against L itself, built as a dense (M + N, M + N) matrix and decomposed by numpy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

import shared.method.spectrum
from shared.method.graph import degree_power, degrees, interaction_matrix, normalise
from shared.method.spectrum import Spectrum, low_spectrum

Graph = sparse.csr_array


def laplacian(graph: Graph) -> np.ndarray:
    """L = I - D^-1/2 A D^-1/2 entry by entry; a node without an edge keeps the 1 of I."""
    rows, users = graph.toarray(), graph.shape[0]
    adjacency = np.zeros((sum(graph.shape), sum(graph.shape)))
    adjacency[:users, users:], adjacency[users:, :users] = rows, rows.T
    degree = adjacency.sum(1)
    found = np.eye(len(degree))
    for a, b in zip(*np.nonzero(adjacency), strict=True):
        found[a, b] -= 1.0 / np.sqrt(degree[a] * degree[b])
    return found


def assert_is_low_end(spectrum: Spectrum, graph: Graph, count: int) -> None:
    """`count` orthonormal eigenvectors of L that belong to its `count` smallest eigenvalues."""
    matrix, basis = laplacian(graph), spectrum.basis
    assert basis.shape == (sum(graph.shape), count)
    np.testing.assert_allclose(spectrum.eigenvalues, np.linalg.eigvalsh(matrix)[:count], atol=1e-10)
    np.testing.assert_allclose(matrix @ basis, basis * spectrum.eigenvalues, atol=1e-10)
    np.testing.assert_allclose(basis.T @ basis, np.eye(count), atol=1e-10)


def blocks(*graphs: Graph) -> Graph:
    return sparse.csr_array(sparse.block_diag(graphs))


def test_a_pair_given_twice_counts_once_and_degrees_count_edges() -> None:
    graph = interaction_matrix(np.array([0, 0, 1, 0]), np.array([0, 2, 2, 0]), (3, 4))
    assert graph.toarray().tolist() == [[1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    by_user, by_item = degrees(graph)
    assert by_user.tolist() == [2, 1, 0] and by_item.tolist() == [1, 0, 2, 0]


def test_the_power_of_no_edge_is_zero_and_not_infinite() -> None:
    assert degree_power(np.array([0.0, 1.0, 4.0]), -0.5).tolist() == [0.0, 1.0, 0.5]
    assert degree_power(np.array([0.0, 4.0]), 0.5).tolist() == [0.0, 2.0]


def test_the_normalised_matrix_divides_each_edge_by_the_roots_of_its_two_degrees() -> None:
    graph = sparse.csr_array(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    # Degrees: users 2 and 1, items 2, 1 and 0: edges become 1/sqrt(2 2), 1/sqrt(2 1) and 1/sqrt(1 2).
    expected = [[1 / 2, 1 / np.sqrt(2), 0.0], [1 / np.sqrt(2), 0.0, 0.0]]
    np.testing.assert_allclose(normalise(graph).toarray(), expected, atol=1e-15)
    # Exponent 1 divides by the degrees themselves.
    np.testing.assert_allclose(normalise(graph, 1.0).toarray(), [[1 / 4, 1 / 2, 0.0], [1 / 2, 0.0, 0.0]], atol=1e-15)


def test_two_users_who_share_both_items_have_the_even_vector_at_frequency_zero() -> None:
    # R_hat is 1/2 everywhere: its only non-zero singular value is 1, with [1, 1] / sqrt(2) on either side. The
    # Laplacian's eigenvector is then 1 / sqrt(4) at each of the four nodes.
    spectrum = low_spectrum(sparse.csr_array(np.ones((2, 2))), 1)
    np.testing.assert_allclose(spectrum.eigenvalues, [0.0], atol=1e-15)
    np.testing.assert_allclose(spectrum.basis, np.full((4, 1), 0.5), atol=1e-15)


@pytest.mark.parametrize(("users", "items", "seed"), [(5, 9, 0), (12, 7, 1), (10, 10, 2), (30, 45, 3)])
def test_a_random_graph_gives_the_low_end_of_its_laplacian(
    drawn: Callable[..., Graph], users: int, items: int, seed: int
) -> None:
    graph = drawn(users, items, seed=seed)
    assert_is_low_end(low_spectrum(graph, 4), graph, 4)


def test_a_graph_in_three_pieces_has_three_zero_frequencies(drawn: Callable[..., Graph]) -> None:
    graph = blocks(drawn(4, 6, seed=1), drawn(5, 3, 0.6, seed=2), drawn(6, 7, seed=3))
    spectrum = low_spectrum(graph, 6)
    assert_is_low_end(spectrum, graph, 6)
    assert (spectrum.eigenvalues < 1e-10).sum() == 3


def test_nodes_without_an_edge_have_a_zero_row_and_change_nothing(drawn: Callable[..., Graph]) -> None:
    inner = drawn(8, 9, seed=4)
    outer = blocks(inner, sparse.csr_array((2, 3)))  # two users and three items more, without an edge
    spectrum, alone = low_spectrum(outer, 3), low_spectrum(inner, 3)
    assert_is_low_end(spectrum, outer, 3)
    assert np.abs(spectrum.users[8:]).max() < 1e-12 and np.abs(spectrum.items[9:]).max() < 1e-12
    np.testing.assert_allclose(spectrum.users[:8], alone.users, atol=1e-10)
    np.testing.assert_allclose(spectrum.items[:9], alone.items, atol=1e-10)


@pytest.mark.parametrize("cutoff", [6, 7, 100])
def test_a_cutoff_beyond_the_graph_keeps_all_frequencies_but_one(drawn: Callable[..., Graph], cutoff: int) -> None:
    graph = drawn(7, 11, seed=5)
    assert_is_low_end(low_spectrum(graph, cutoff), graph, 6)


def test_one_user_has_one_frequency() -> None:
    spectrum = low_spectrum(sparse.csr_array(np.ones((1, 3))), 64)
    # A star: L p = 0 for p proportional to sqrt(degree) = [sqrt 3, 1, 1, 1], of length sqrt 6.
    np.testing.assert_allclose(spectrum.eigenvalues, [0.0], atol=1e-15)
    np.testing.assert_allclose(spectrum.basis[:, 0], np.sqrt([3, 1, 1, 1]) / np.sqrt(6), atol=1e-15)


def test_the_iterative_solver_gives_what_the_dense_one_gives(
    drawn: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = drawn(300, 400, 0.05, seed=6)
    called: list[int] = []
    iterative = shared.method.spectrum._iterative
    monkeypatch.setattr(shared.method.spectrum, "_iterative", lambda *a: called.append(1) or iterative(*a))
    found = low_spectrum(graph, 12)
    assert called == [1]
    left, singular, right = np.linalg.svd(normalise(graph).toarray())
    np.testing.assert_allclose(found.singular, singular[:12], atol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(found.users * left[:, :12], axis=0)), np.ones(12), atol=1e-8)
    np.testing.assert_allclose(np.abs(np.sum(found.items * right[:12].T, axis=0)), np.ones(12), atol=1e-8)
    monkeypatch.setattr(shared.method.spectrum, "DENSE_LIMIT", 300)
    dense = low_spectrum(graph, 12)
    assert called == [1]
    np.testing.assert_allclose(found.basis, dense.basis, atol=1e-8)  # the signs agree too


def test_the_iterative_solver_finds_a_repeated_frequency_as_often_as_it_occurs(drawn: Callable[..., Graph]) -> None:
    graph = blocks(drawn(140, 180, 0.06, seed=7), drawn(160, 170, 0.06, seed=8), sparse.csr_array((5, 20)))
    spectrum = low_spectrum(graph, 5)
    assert_is_low_end(spectrum, graph, 5)
    assert (spectrum.eigenvalues < 1e-10).sum() == 2
    assert np.abs(spectrum.users[300:]).max() < 1e-10 and np.abs(spectrum.items[350:]).max() < 1e-10


@pytest.mark.parametrize("shape", [(20, 30), (300, 310)])
def test_signs_are_fixed_and_the_same_graph_gives_the_same_bits(
    drawn: Callable[..., Graph], shape: tuple[int, int]
) -> None:
    first, second = (low_spectrum(drawn(*shape, 0.1, seed=9), 8) for _ in range(2))
    peaks = first.items[np.abs(first.items).argmax(0), np.arange(8)]
    assert (peaks > 0).all()
    for name in ("singular", "users", "items"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_a_negated_solution_is_turned_back() -> None:
    left, right = np.array([[-0.6, 0.8], [-0.8, -0.6]]), np.array([[-1.0, 0.0], [0.0, 1.0]])
    turned = shared.method.spectrum._orient(left, np.array([1.0, 0.5]), right)
    assert turned.items.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert turned.users.tolist() == [[0.6, 0.8], [0.8, -0.6]]  # user and item vector turn together


def test_a_spectrum_is_cut_at_its_high_end(drawn: Callable[..., Graph]) -> None:
    graph = drawn(10, 12, seed=10)
    whole, cut = low_spectrum(graph, 6), low_spectrum(graph, 6).cut(2)
    assert_is_low_end(cut, graph, 2)
    assert whole.cut(99).singular.tolist() == whole.singular.tolist()
