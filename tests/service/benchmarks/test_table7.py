"""The figures of a partition against graphs whose figures are known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from benchmarks.common import locate_data, paper_figures, render_table
from benchmarks.table7.run import (
    PAPER_ROWS,
    SHOWN,
    check,
    laplacian_eigenvalues,
    render,
    run,
    spectral_entropy,
    structure_figures,
)
from shared.errors import DataError, SettingsError
from shared.method.graph import normalise
from simulation.partitioning.methods import METHODS
from simulation.partitioning.sources import Cut, Shards, cut_shards


def test_a_star_has_the_degree_and_density_that_the_paper_s_ego_graphs_have() -> None:
    star = sparse.csr_array(np.ones((1, 61)))  # n = 62: degree 2 * 61 / 62 = 1.97, density 2 / 62 = .032
    found = structure_figures(star, cutoff=4)
    assert found["degree"] == pytest.approx(1.968, abs=1e-3) and found["density"] == pytest.approx(0.0323, abs=1e-4)
    assert found["degree_variance"] == pytest.approx((61**2 + 61) / 62 - (122 / 62) ** 2)
    assert found["energy"] == pytest.approx(1.0) and found["size"] == 62  # one singular value, which is 1


def test_users_and_items_without_an_edge_are_no_nodes() -> None:
    graph = sparse.csr_array(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert (structure_figures(graph, 4)["users"], structure_figures(graph, 4)["items"]) == (1.0, 2.0)


def test_the_spectrum_is_that_of_the_dense_laplacian() -> None:
    graph = sparse.csr_array((np.random.default_rng(1).random((9, 6)) < 0.5).astype(np.float64))
    half = normalise(graph).toarray()
    laplacian = np.eye(15) - np.block([[np.zeros((9, 9)), half], [half.T, np.zeros((6, 6))]])
    dense = np.linalg.eigvalsh(laplacian)
    singular = np.linalg.svd(half, compute_uv=False)
    assert laplacian_eigenvalues(singular, (9, 6)) == pytest.approx(dense, abs=1e-10)
    shares = dense[dense > 1e-12] / dense.sum()
    assert structure_figures(graph, 3)["entropy"] == pytest.approx(-(shares * np.log2(shares)).sum(), abs=1e-6)
    assert structure_figures(graph, 3)["energy"] == pytest.approx((singular[:3] ** 2).sum() / (singular**2).sum())


def test_equal_eigenvalues_have_the_largest_entropy() -> None:
    assert spectral_entropy(np.ones(8)) == pytest.approx(3.0) and spectral_entropy(np.array([1e-9, 1.0])) < 1e-6


def test_the_quick_run_measures_every_method_and_passes_its_own_check(tmp_path: Path) -> None:
    config = {"data": "synthetic", "clients": 4, "partitions": [0], "cutoff": 64}
    rows = run(config, quick=True, data=None, out=tmp_path)
    assert [row["method"] for row in rows] == list(METHODS) and check(rows) == []
    assert list(tmp_path.iterdir()) == []  # the shards were only needed to be measured
    shown = render(rows)
    assert all(f"\n| {method} |" in shown for method in METHODS) and "paper:" not in shown
    lost = [row | {"edges_kept": 0.9} for row in rows]
    assert len(check(lost)) == 3
    even = [row | {"density": 0.01} for row in rows]
    assert check(even) == ["expected a larger density of spectral than of random parts, got 0.01"]


def test_a_method_that_cannot_divide_the_data_is_told_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(place: str, cut: Cut, folder: Path) -> Shards:
        if cut.method == "ego":
            raise DataError("too many clients")
        return cut_shards(place, cut, folder)

    monkeypatch.setattr("benchmarks.table7.run.cut_shards", cut)
    monkeypatch.setattr("benchmarks.table7.run.METHODS", {"random": None, "ego": None})
    config = {"data": "synthetic", "clients": 8, "partitions": [0], "cutoff": 8}
    rows = run(config, quick=True, data=None, out=tmp_path)
    assert rows[0]["edges_kept"] == 1.0 and check(rows) == ["ego, partition 0: too many clients"]
    assert "- ego, partition 0: too many clients" in render(rows)


def test_the_paper_s_figures_stand_beside_ours() -> None:
    paper = paper_figures("table7", "ml-1m")
    assert set(paper) == set(PAPER_ROWS.values()) and all(set(row) == set(SHOWN) for row in paper.values())
    one = {"data": "ml-1m", "method": "ego", "partition": 0, "edges_kept": 0.5, "by_client": [{"users": 2, "items": 3}]}
    assert "| paper: Ego-graph | - | 141.1 ± 16.8 |" in render([one | dict.fromkeys(SHOWN, 1.0)])


def test_data_that_are_not_there_are_named() -> None:
    assert locate_data("synthetic", None) == "synthetic"
    with pytest.raises(SettingsError, match="'ml-1m'"):
        locate_data("ml-1m", None)
    assert render_table(["a"], [["1"]]) == "| a |\n| --- |\n| 1 |"
