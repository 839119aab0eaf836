"""Bases of node graphs: the worked numbers, angles, ends of Krylov spaces, rows of new nodes."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from client_service.models.nodes.spectral_bases import SpectralBases, mixed_bases, propagation_matrix
from shared.errors import SettingsError
from shared.method.graph import Float64

DATA = Path(os.environ.get("LPSFED_TEST_DATA", Path(__file__).parents[6] / "shared" / "data"))


def path_of(nodes: int) -> sparse.csr_array:
    return sparse.csr_array(sparse.diags_array([np.ones(nodes - 1)] * 2, offsets=[-1, 1]))


def drawn_graph(nodes: int, seed: int = 0) -> sparse.csr_array:
    upper = np.triu(np.random.default_rng(seed).random((nodes, nodes)) < 0.15, 1).astype(float)
    return sparse.csr_array(upper + upper.T)


def stacked(bases: SpectralBases) -> Float64:
    return np.concatenate([bases.first.toarray()[None], bases.others]).astype(np.float64)


FIRST = sparse.csr_array(np.array([[1.0], [0.0], [0.0]]))


def test_bases_of_a_path_are_the_worked_numbers() -> None:
    found = mixed_bases(propagation_matrix(path_of(3)), FIRST, 2, 1 / 3, 0.0).others[:, :, 0]
    assert np.allclose(found, [[0.5, 0.8660254, 0.0], [0.5, 0.2886751, 0.8164966]], atol=1e-6)
    mixed = mixed_bases(propagation_matrix(path_of(3)), FIRST, 2, 1 / 3, 0.5).others[:, :, 0]
    assert np.allclose(mixed, [[0.25, 0.7865661, 0.0], [0.5, 0.1443376, 0.6582483]], atol=1e-6)


@pytest.mark.parametrize("homophily", [0.0, 0.2, 0.5, 0.81, 1.0])
def test_all_pairs_of_bases_meet_at_the_angle_of_the_homophily(homophily: float) -> None:
    values = np.random.default_rng(1).standard_normal((60, 4))
    found = stacked(mixed_bases(propagation_matrix(drawn_graph(60)), sparse.csr_array(values), 8, homophily, 0.0))
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    cosines = np.einsum("knf,jnf->kjf", unit, unit)[~np.eye(9, dtype=bool)]
    assert np.allclose(cosines, np.cos(np.pi / 2 * (1 - homophily)), atol=1e-6)


@pytest.mark.parametrize("tau", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("homophily", [0.0, 0.3, 1.0])
def test_coefficients_make_the_bases_of_powers_and_so_those_of_a_new_row(tau: float, homophily: float) -> None:
    propagation, values = propagation_matrix(drawn_graph(40)), np.random.default_rng(2).standard_normal((40, 3))
    bases = mixed_bases(propagation, sparse.csr_array(values), 5, homophily, tau)
    powers = [values]
    for _ in range(5):
        powers.append(propagation @ powers[-1])
    made = np.einsum("kjf,jmf->kmf", bases.coefficients, np.stack(powers)[:, 7:9])
    assert np.allclose(made, stacked(bases)[:, 7:9], atol=1e-5)


@pytest.mark.parametrize("homophily", [0.0, 0.4, 1.0])
def test_a_space_that_ends_gives_finite_bases(homophily: float) -> None:
    pair = mixed_bases(propagation_matrix(path_of(2)), sparse.csr_array(np.array([[1.0], [0.0]])), 6, homophily, 0.0)
    assert np.isfinite(pair.others).all()
    lengths = np.linalg.norm(pair.others[:, :, 0], axis=1)
    assert np.allclose(lengths, 1.0, atol=1e-6) or homophily == 0.0  # no right angle is left, so that bases end


def test_columns_of_zeros_isolated_nodes_and_a_graph_without_edges_stay_finite() -> None:
    lonely = sparse.csr_array((4, 4))
    assert propagation_matrix(lonely).nnz == 0
    bases = mixed_bases(propagation_matrix(lonely), sparse.csr_array(np.array([[1.0, 0.0]] * 4)), 3, 0.75, 0.5)
    assert np.isfinite(bases.others).all() and not bases.others[:, :, 1].any()


def test_self_loops_count_for_nothing_and_large_weights_overflow_nothing() -> None:
    looped = sparse.csr_array(np.array([[5.0, 1e6, 0], [1e6, 0, 1], [0, 1, 3.0]]))
    plain = sparse.csr_array(np.array([[0, 1e6, 0], [1e6, 0, 1], [0, 1, 0]]))
    assert np.allclose(propagation_matrix(looped).toarray(), propagation_matrix(plain).toarray())
    assert np.abs(np.linalg.eigvalsh(propagation_matrix(looped).toarray())).max() <= 1 + 1e-9


@pytest.mark.parametrize(("order", "homophily", "tau"), [(0, 0.5, 0.5), (2, 1.5, 0.5), (2, 0.5, -0.1), (2, np.nan, 1)])
def test_impossible_settings_are_refused_in_words(order: int, homophily: float, tau: float) -> None:
    with pytest.raises(SettingsError, match="bases of nodes: expected"):
        mixed_bases(propagation_matrix(path_of(3)), FIRST, order, homophily, tau)


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "planetoid" / "cora.npz").exists(), reason="needs ../shared/data")
def test_bases_of_cora_meet_at_their_angle_within_ten_seconds_and_400_megabytes() -> None:
    file = np.load(DATA / "planetoid" / "cora.npz")
    features = sparse.csr_array((file["x_data"], file["x_indices"], file["x_indptr"]), shape=tuple(file["x_shape"]))
    ends = np.concatenate([file["edges"], file["edges"][:, ::-1]])
    propagation = propagation_matrix(sparse.csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=[2708] * 2))
    tracemalloc.start()
    begun = time.process_time()
    bases = mixed_bases(propagation, features, 10, 0.81, 0.0)
    assert time.process_time() - begun < 10
    assert tracemalloc.get_traced_memory()[1] < 400e6
    tracemalloc.stop()
    some = np.concatenate([features[:, :60].toarray()[None].astype(np.float64), bases.others[:, :, :60]])
    some = some[:, :, (np.linalg.norm(some, axis=1) > 0).all(0)]
    unit = some / np.linalg.norm(some, axis=1, keepdims=True)
    cosines = np.einsum("knf,jnf->kjf", unit, unit)[~np.eye(11, dtype=bool)]
    assert np.abs(cosines - np.cos(np.pi / 2 * 0.19)).max() < 1e-6
