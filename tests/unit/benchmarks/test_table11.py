"""Eigengaps, correlations and their table, against figures known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import paper_figures
from benchmarks.harness.plan import run_own_table
from benchmarks.table11.run import MEAN, check, cutoff_eigengap, pearson_correlation, render


def test_the_gap_is_that_above_the_last_frequency_kept() -> None:
    values = np.array([0.0, 0.1, 0.4])
    assert cutoff_eigengap(values, 1) == pytest.approx(0.1) and cutoff_eigengap(values, 2) == pytest.approx(0.3)
    assert cutoff_eigengap(values, 3) is None


def test_the_paper_s_own_correlation_comes_out_and_says_nothing() -> None:
    rows = list(paper_figures("table11", "ml-1m").values())
    found = pearson_correlation([row["gap"] for row in rows], [row["recall"] for row in rows])
    assert found is not None and found["r"] == pytest.approx(0.5004, abs=2e-3) and found["p"] > 0.4


def test_no_correlation_is_told_where_there_is_none_to_tell() -> None:
    assert (
        pearson_correlation([1.0, 2.0], [1.0, 2.0]) is None
        and pearson_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    )
    assert pearson_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == {
        "r": pytest.approx(-1.0),
        "p": pytest.approx(0.0, abs=1e-6),
        "pairs": 3,
    }


def test_the_quick_run_has_every_client_and_cut_off_and_passes_its_own_check(tmp_path: Path) -> None:
    rows = run_own_table("table11", quick=True, data=None, out=tmp_path)
    own = [row for row in rows if row["part"] == "cutoff"]
    names = [*(f"client-{number}" for number in range(1, 5)), MEAN]
    assert [(row["client"], row["cutoff"]) for row in own] == [(n, c) for n in names for c in (2, 4, 8, 16, 32)]
    assert check(rows) == [] and list(tmp_path.iterdir()) == []
    at = {(row["client"], row["cutoff"]): row["recall"] for row in own}
    assert at[MEAN, 8] == pytest.approx(np.mean([at[name, 8] for name in names[:4]]))
    found = next(row for row in rows if row["part"] == "correlation" and row["client"] == MEAN)
    pairs = np.array([(row["gap"], row["recall"]) for row in own if row["client"] == MEAN])
    assert found["all"]["r"] == pytest.approx(np.corrcoef(pairs.T)[0, 1])
    assert found["paper_cutoffs"]["pairs"] == 3
    shown = render(rows)
    assert "| Recall@20 (delta) | 2 | 4 | 8 | 16 | 32 |" in shown and "paper |" not in shown


def test_the_check_and_the_table_look_at_the_rows() -> None:
    mean = [{"part": "cutoff", "client": MEAN, "data": "ml-1m", "cutoff": c, "gap": 0.1} for c in (2, 4, 8)]
    best = [row | {"recall": recall} for row, recall in zip(mean, (0.1, 0.3, 0.2), strict=True)]
    assert check(best) == []
    assert len(check([row | {"recall": 0.1 * row["cutoff"]} for row in mean])) == 1
    assert len(check([best[0] | {"gap": -0.1}, *best[1:]])) == 1
    assert "| paper | 0.2556 (1.2e-15) | 0.2614 (4.4e-03) | 0.2622 (1.5e-01) |" in render(best)
    assert "| client mean | 0.1000 (1.0e-01) |" in render(best)


def test_a_spectrum_that_is_too_short_is_left_out() -> None:
    row = {"part": "cutoff", "client": MEAN, "data": "other", "cutoff": 512, "gap": None, "recall": 0.2}
    assert "| client mean | - |" in render([row])
