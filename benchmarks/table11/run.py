"""Correlation of eigengap and Recall of the low-pass filter over cut-offs (Table 11).

The filter is the ideal one, h = 1 on the first Phi frequencies: nothing is trained or chosen.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

from benchmarks.common import locate_data, paper_figures, render_table
from benchmarks.harness.claims import FAILS, HOLDS, UNSEEN
from benchmarks.harness.statistics import LEVEL
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.evaluation.ranking import measure_test
from client_service.models.initial_filter import Filter
from client_service.training.filter_search import filter_top
from shared.method.graph import Float64
from shared.method.spectrum import Spectrum, low_spectrum
from simulation.partitioning.sources import Cut, cut_shards

Row = dict[str, Any]
MEAN = "client mean"


def run(config: dict[str, Any], *, quick: bool, data: Path | None, out: Path) -> list[Row]:
    """Measures each client and cut-off, client means, and correlations."""
    del quick
    place, cutoffs = locate_data(config["data"], data), config["cutoffs"]
    with threadpool_limits(1), tempfile.TemporaryDirectory(dir=out) as folder:
        shards = cut_shards(place, Cut(config["clients"], "spectral"), Path(folder))
        client_rows = [row for path in shards.paths for row in _client_rows(load_shard(path), path.name, cutoffs)]
    rows = [*client_rows, *(_mean_row(client_rows, cutoff) for cutoff in cutoffs)]
    names = list(dict.fromkeys(row["client"] for row in rows))
    return [
        row | {"data": config["data"]} for row in [*rows, *(_correlation_row(rows, n, config["paper"]) for n in names)]
    ]


def _client_rows(shard: Shard, name: str, cutoffs: list[int]) -> list[Row]:
    spectrum = low_spectrum(shard.train, max(cutoffs) + 1)
    return [
        {
            "part": "cutoff",
            "client": name,
            "cutoff": cutoff,
            "gap": cutoff_eigengap(spectrum.eigenvalues, cutoff),
            "recall": _test_recall(shard, spectrum, cutoff),
        }
        for cutoff in cutoffs
    ]


def cutoff_eigengap(eigenvalues: Float64, cutoff: int) -> float | None:
    """Computes delta = lambda_{Phi+1} - lambda_Phi; None for a shorter spectrum."""
    if len(eigenvalues) <= cutoff:
        return None
    return float(eigenvalues[cutoff] - eigenvalues[cutoff - 1])


def _test_recall(shard: Shard, spectrum: Spectrum, cutoff: int) -> float:
    """Measures Recall@20 on test items."""
    return measure_test(shard, filter_top(Filter(cutoff, ridge=0.0, exponent=0.5), spectrum, shard.train)).values[
        "recall"
    ]


def _mean_row(rows: list[Row], cutoff: int) -> Row:
    """Averages over the clients with a long enough spectrum."""
    own = [row for row in rows if row["cutoff"] == cutoff and row["gap"] is not None]
    gap = float(np.mean([row["gap"] for row in own])) if own else None
    recall = float(np.mean([row["recall"] for row in own])) if own else None
    return {"part": "cutoff", "client": MEAN, "cutoff": cutoff, "gap": gap, "recall": recall}


def _correlation_row(rows: list[Row], client: str, paper: list[int]) -> Row:
    """Computes Pearson's r of Recall with delta, and with log2 Phi.

    Over all cut-offs, and over the paper's.
    """
    own = [row for row in rows if row["client"] == client and row["gap"] is not None]
    return {
        "part": "correlation",
        "client": client,
        "all": pearson_correlation([row["gap"] for row in own], [row["recall"] for row in own]),
        "paper_cutoffs": pearson_correlation(*_gaps_and_recalls([row for row in own if row["cutoff"] in paper])),
        "with_cutoff": pearson_correlation(
            [float(np.log2(row["cutoff"])) for row in own], [row["recall"] for row in own]
        ),
    }


def _gaps_and_recalls(rows: list[Row]) -> tuple[list[float], list[float]]:
    return [row["gap"] for row in rows], [row["recall"] for row in rows]


def pearson_correlation(first: list[float], second: list[float]) -> dict[str, float] | None:
    """Computes r, its two-sided p-value and the number of pairs.

    None with fewer than 3, or without variation on one side.
    """
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    result = stats.pearsonr(first, second)
    return {"r": float(result.statistic), "p": float(result.pvalue), "pairs": len(first)}


def render(rows: list[Row]) -> str:
    """Renders Recall and eigengap by cut-off, the paper's values, and the correlations."""
    own = [row for row in rows if row["part"] == "cutoff"]
    clients, cutoffs = (list(dict.fromkeys(row[key] for row in own)) for key in ("client", "cutoff"))
    by_cutoff = {(row["client"], row["cutoff"]): row for row in own}
    lines = [[client, *(_recall_cell(by_cutoff[client, cutoff]) for cutoff in cutoffs)] for client in clients]
    if theirs := paper_figures("table11", rows[0]["data"]):
        lines.append(["paper", *(_recall_cell(theirs.get(str(cutoff), {})) for cutoff in cutoffs)])
    values = [row for row in rows if row["part"] == "correlation"]
    correlations = [
        [row["client"], *(_trend_text(row[key]) for key in ("all", "paper_cutoffs", "with_cutoff"))] for row in values
    ]
    if theirs:
        correlations.append(
            ["paper", "-", _trend_text(pearson_correlation(*_gaps_and_recalls(list(theirs.values())))), "-"]
        )
    head = ["Pearson's r with Recall", "delta, all cut-offs", "delta, the paper's cut-offs", "log2 Phi"]
    return render_table(["Recall@20 (delta)", *map(str, cutoffs)], lines) + "\n\n" + render_table(head, correlations)


def _recall_cell(row: Row) -> str:
    return f"{row['recall']:.4f} ({row['gap']:.1e})" if row.get("gap") is not None else "-"


def _trend_text(value: dict[str, float] | None) -> str:
    return "-" if value is None else f"{value['r']:.3f} (p {value['p']:.2f}, {value['pairs']:.0f} pairs)"


def claims(rows: list[Row]) -> list[tuple[str, str, str, str]]:
    """Judges whether Recall rises with the eigengap, over cut-offs and client means."""
    own = next(row["all"] for row in rows if row["part"] == "correlation" and row["client"] == MEAN)
    if own is None:
        return []
    seen = own["p"] < LEVEL
    verdict = UNSEEN if not seen else HOLDS if own["r"] > 0 else FAILS
    return [
        ("A larger eigengap comes with a higher Recall", rows[0]["data"], f"Pearson's r {_trend_text(own)}", verdict)
    ]


def check(rows: list[Row]) -> list[str]:
    """Checks that gaps are not negative and the best Recall lies between the ends."""
    own = [row for row in rows if row["part"] == "cutoff" and row["gap"] is not None]
    complaints = [f"expected an eigengap of at least 0, got {row}" for row in own if row["gap"] < 0]
    recalls = [row["recall"] for row in own if row["client"] == MEAN]
    if not recalls or max(recalls) in (recalls[0], recalls[-1]):
        complaints.append(f"expected the best Recall strictly between the ends of the cut-offs, got {recalls}")
    return complaints
