"""The neutral random graph G_R and its kernel K^R."""

from __future__ import annotations

import numpy as np
import pytest

from shared.method.anchor import choose_size, declared_size, draw_anchor, draw_er, draw_gnmk, is_same_kernel
from shared.method.declaration import Counts
from shared.method.graph import Float64
from shared.method.settings import AnchorSettings, MethodSettings

SMALL = AnchorSettings(users=40, items=30, edges=200)


def drawn(method: MethodSettings, *, seed: int = 1, number: int = 0) -> Float64:
    return draw_anchor(method, declared_size(method.anchor), seed=seed, number=number)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_gnmk_has_exactly_so_many_distinct_edges() -> None:
    graph = draw_gnmk(40, 30, edges=200, generator=generator())
    assert graph.shape == (40, 30)
    assert graph.nnz == 200
    assert set(graph.data) == {1.0}


def test_gnmk_is_complete_when_there_are_no_more_places_than_edges() -> None:
    assert draw_gnmk(4, 3, edges=13, generator=generator()).toarray().tolist() == [[1.0] * 3] * 4


def test_every_place_of_gnmk_is_equally_likely() -> None:
    draws = sum(draw_gnmk(3, 4, edges=3, generator=generator(seed)).toarray() for seed in range(2000))
    # 2000 draws of 3 out of 12 places: 500 expected each, standard deviation below 20
    assert np.abs(draws - 500).max() < 100


def test_a_sparse_graph_of_a_million_by_a_million_needs_no_matrix_of_that_size() -> None:
    assert draw_gnmk(1_000_000, 1_000_000, edges=1000, generator=generator()).nnz == 1000


def test_er_has_so_many_edges_on_average() -> None:
    counts = [draw_er(40, 30, edges=200, generator=generator(seed)).nnz for seed in range(200)]
    # binomial with 1200 trials and p = 1/6: standard deviation 12.9, of the mean of 200 draws .91
    assert abs(np.mean(counts) - 200) < 4
    assert np.std(counts) == pytest.approx(12.9, rel=0.25)


def test_the_kernel_sums_to_one_ascends_and_has_no_zero() -> None:
    values = drawn(MethodSettings(cutoff=12, anchor=SMALL))
    # one connected component: one zero eigenvalue among the 12 lowest
    assert len(values) == 11
    assert values.sum() == pytest.approx(1.0)
    assert (np.diff(values) >= 0).all()
    assert (values > 0).all()


@pytest.mark.parametrize("graph", ["gnmk", "er"])
def test_a_seed_gives_the_same_anchor_again_and_another_seed_another(graph: str) -> None:
    method = MethodSettings(cutoff=12, anchor=SMALL.model_copy(update={"graph": graph}))
    first, again, other = (drawn(method, seed=seed) for seed in (1, 1, 2))
    assert is_same_kernel(first, again) and not is_same_kernel(first, other)


def test_an_anchor_of_every_round_depends_on_the_round_and_one_of_the_run_does_not() -> None:
    every = MethodSettings(cutoff=12, anchor=SMALL.model_copy(update={"every_round": True}))
    assert not is_same_kernel(drawn(every, number=1), drawn(every, number=2))
    once = MethodSettings(cutoff=12, anchor=SMALL)
    assert is_same_kernel(drawn(once, number=1), drawn(once, number=2))


def test_kernels_are_the_same_up_to_the_rounding_of_two_machines_and_no_further() -> None:
    kernel = drawn(MethodSettings(cutoff=12, anchor=SMALL))
    assert is_same_kernel(kernel, kernel * (1 + 1e-13))
    assert not is_same_kernel(kernel, kernel * (1 + 1e-6)) and not is_same_kernel(kernel, kernel[:-1])


def test_the_source_says_that_the_size_was_declared() -> None:
    counts = [Counts(users=50, items=60, edges=70)]
    size, source = choose_size(SMALL, counts)
    assert (size, source) == (declared_size(SMALL), "declared 40 x 30 x 200")


def test_the_size_may_be_the_mean_of_what_clients_agreed_to_count() -> None:
    counts = [Counts(users=10, items=20, edges=100), Counts(users=20, items=41, edges=301)]
    size, source = choose_size(SMALL.model_copy(update={"size": "counts"}), counts)
    assert (size, source) == (Counts(users=15, items=30, edges=200), "mean of the counts of 2 clients")


def test_without_any_counts_the_declared_size_is_used() -> None:
    assert choose_size(SMALL.model_copy(update={"size": "counts"}), [])[1] == "declared 40 x 30 x 200"


@pytest.mark.parametrize("edges", [8, 12])
def test_a_graph_of_almost_only_isolated_nodes_is_no_problem(edges: int) -> None:
    sparse = AnchorSettings(users=400, items=300, edges=edges)
    assert np.isfinite(drawn(MethodSettings(anchor=sparse), seed=0)).all()
