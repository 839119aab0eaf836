"""Block models, and both sides of the theorems, against what is known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.plan import run_own_table
from benchmarks.theorems.run import (
    BlockModel,
    both_sides,
    check,
    community_eigengap,
    community_indicators,
    community_labels,
    draw_graph,
    expected_graph,
    render,
    run,
    structural_eigenvalues,
)
from shared.errors import SettingsError
from shared.method.divergence import divergence, kernel
from shared.method.graph import normalise

EQUAL = BlockModel(communities=4, within=(0.6, 0.6), between=0.1)


def test_the_expected_spectrum_of_equal_communities_is_the_one_by_hand() -> None:
    # s_1 = 1, and (p - q) / (p + (k - 1) q) for the other three: .5 / .9.
    found = structural_eigenvalues(EQUAL, 40, cutoff=6)
    assert found == pytest.approx([0.0, *[1 - 0.5 / 0.9] * 3, 1.0, 1.0], abs=1e-12)
    assert community_eigengap(found, 4) == pytest.approx(0.5 / 0.9) and community_eigengap(
        found[:4], 4
    ) == pytest.approx(0.5 / 0.9)


def test_a_drawn_graph_has_the_chances_of_its_blocks() -> None:
    model = BlockModel(communities=2, within=(0.2, 0.8), between=0.05, thinning=0.5)
    graph = draw_graph(model, 400, np.random.default_rng(0)).toarray()
    own = community_labels(400, 2)
    means = [[graph[np.ix_(own == a, own == b)].mean() for b in (0, 1)] for a in (0, 1)]
    assert np.abs(np.array(means) - [[0.1, 0.025], [0.025, 0.4]]).max() < 0.01
    assert expected_graph(model, 400).toarray().mean() == pytest.approx(graph.mean(), abs=0.01)


def test_dividing_by_the_sum_forgets_the_gap() -> None:
    """Equal communities, a clear gap and hardly any: the same K, so that no divergence is left to preserve."""
    clear, faint = (BlockModel(12, (0.9, 0.9), between) for between in (0.05, 0.7))
    ideal = [structural_eigenvalues(model, 120, 12) for model in (clear, faint)]
    assert community_eigengap(ideal[0], 12) > 0.5 > 0.1 > community_eigengap(ideal[1], 12)
    assert divergence(kernel(ideal[0]), kernel(ideal[1])) == pytest.approx(0.0, abs=1e-12)


def test_the_left_sides_are_those_of_dense_matrices() -> None:
    graph, communities = draw_graph(EQUAL, 20, np.random.default_rng(3)), 4
    half = normalise(graph).toarray()
    zero = np.zeros_like(half)
    laplacian = np.eye(40) - np.block([[zero, half], [half.T, zero]])
    values, vectors = np.linalg.eigh(laplacian)
    low, chi = vectors[:, :communities], community_indicators(20, communities)
    filtered, ideal = low @ low.T, chi @ chi.T
    sides = both_sides(graph, communities)
    assert sides["gap"] == pytest.approx(values[communities] - values[communities - 1])
    assert sides["lemma"] == pytest.approx(np.linalg.norm(filtered - ideal, 2))
    smooth = filtered @ laplacian @ filtered - ideal @ laplacian @ ideal
    assert sides["left"] == pytest.approx(np.linalg.norm(smooth, 2))
    assert sides["bound"] == pytest.approx(32 * 2 / sides["gap"]) and sides["lemma_bound"] == pytest.approx(
        8 * 2 / sides["gap"]
    )
    assert sides["dropped"] > sides["bound"] > 4 * sides["trivial"]  # Eq. 82's second term is the larger one


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of the quick run."""
    return run_own_table("theorems", quick=True, data=None, out=tmp_path_factory.mktemp("theorems"))


def test_a_small_run_shows_concentration_and_passes_its_own_check(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    assert check(rows) == []
    assert run_own_table("theorems", quick=True, data=None, out=tmp_path) == rows
    dense = [row for row in rows if row["part"] == "concentration" and row["regime"] == "dense"]
    assert {row["n"] for row in dense} == {100, 200, 400} and {row["seeds"] for row in dense} == {6}
    shown = render(rows)
    assert "Theorem 4.1, part 1" in shown and shown.count("\n| dense |") == 2 + len(dense)


def test_the_check_complains_where_a_bound_breaks_or_nothing_concentrates(rows: list[dict[str, Any]]) -> None:
    broken = [row | {"held": False} if row["part"] == "smoothness" else row for row in rows]
    flat = [row | {"error_slope": 0.0} if row["part"] == "rate" else row for row in rows]
    assert len(check(broken)) == sum(row["part"] == "smoothness" for row in rows)
    assert len(check(flat)) == 2


def test_a_cut_off_with_too_few_frequencies_to_compare_is_refused() -> None:
    model = {"within": [0.2, 0.8], "between": 0.1}
    config = {"communities": 4, "sizes": [40], "cutoffs": [4], "regimes": ["dense"], "seeds": 1}
    with pytest.raises(SettingsError, match="at least 8 non-zero frequencies, got 4"):
        run(config | {"first": model, "second": model}, quick=False, data=None, out=Path())
