"""Renders FedUTR's tables from results.jsonl and tests its paper's claims.

The command is `python -m benchmarks.fedutr.tables`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.fedutr.run import RESULTS, Row

FIGURES = ("hr10_all", "ndcg10_all", "hr10_99", "ndcg10_99")
CLAIMS = {
    "FedUTR is ahead of FedMF": ("fedutr", "fedmf"),
    "FedUTR is ahead of FedRAP": ("fedutr", "fedrap"),
    "FedUTR is ahead of PFedRec": ("fedutr", "pfedrec"),
    "FedUTR is ahead of FedMF with text": ("fedutr", "fedmf+text"),
    "FedUTR is ahead of FedRAP with text": ("fedutr", "fedrap+text"),
    "FedUTR is ahead of popularity": ("fedutr", "popularity"),
    "FedUTR is ahead of EASE": ("fedutr", "ease"),
    "FedUTR-SAR is ahead of FedUTR": ("fedutr_sar", "fedutr"),
    "the text (URM) helps": ("fedutr", "fedutr-urm"),
    "the fusion (CIFM) helps": ("fedutr", "fedutr-cifm"),
    "the adaptation (LAM) helps": ("fedutr", "fedutr-lam"),
    "the L1 norm helps": ("fedutr", "fedutr-l1"),
    "LayerNorm helps": ("fedutr", "fedutr-layernorm"),
    "text lifts FedMF": ("fedmf+text", "fedmf"),
    "text lifts FedRAP": ("fedrap+text", "fedrap"),
    "text lifts PFedRec": ("pfedrec+text", "pfedrec"),
    "noise of .5 costs little": ("fedutr+noise.5", "fedutr"),
}
"""Claim of the paper -> the row that is said to be ahead, and the other one; of noise, that it is not behind."""
Cells = Mapping[str, Mapping[int, Mapping[str, float]]]


def read_cells(path: Path = RESULTS) -> dict[tuple[Any, ...], dict[str, dict[int, dict[str, float]]]]:
    """Reads the test figures by data set and sizes, row and seed.

    The last line of each counts.
    """
    found: dict[tuple[Any, ...], dict[str, dict[int, dict[str, float]]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row: Row = json.loads(line)
        sizes = tuple(row[name] for name in ("data", "users", "records", "silos"))
        found.setdefault(sizes, {}).setdefault(row["row"], {})[row["seed"]] = row["test"]
    return found


def judge_claim(cells: Cells, ahead: str, behind: str, figure: str = "hr10_all") -> str:
    """Tests a claim by the mean difference over seeds.

    The text has the verdict, the difference and its 95 % interval (Student's t).
    """
    seeds = sorted(cells.get(ahead, {}).keys() & cells.get(behind, {}).keys())
    if len(seeds) < 2:
        return "not measured"
    gains = np.array([cells[ahead][seed][figure] - cells[behind][seed][figure] for seed in seeds])
    half = float(stats.t.ppf(0.975, len(seeds) - 1) * gains.std(ddof=1) / np.sqrt(len(seeds)))
    mean = float(gains.mean())
    verdict = "holds" if mean - half > 0 else "does not hold" if mean + half < 0 else "no difference seen"
    return f"{verdict}: {mean:+.4f} +- {half:.4f} over {len(seeds)} seeds"


def render_cells(cells: Cells) -> Iterable[str]:
    """Renders a line for each row with its means over seeds."""
    yield "| row | seeds | " + " | ".join(FIGURES) + " |"
    yield "| --- " * (2 + len(FIGURES)) + "|"
    for name, seeds in cells.items():
        means = [float(np.mean([one[figure] for one in seeds.values()])) for figure in FIGURES]
        yield f"| {name} | {len(seeds)} | " + " | ".join(f"{value:.4f}" for value in means) + " |"


def render_tables(found: Mapping[tuple[Any, ...], Cells]) -> Sequence[str]:
    """Renders the tables and the tested claims of all data sets."""
    lines = []
    for sizes, cells in found.items():
        lines += [f"\n{sizes[0]}: {sizes[1] or 'all'} users, {sizes[2] or 'all'} records, {sizes[3] or 'no'} silos", ""]
        lines += [*render_cells(cells), ""]
        lines += [f"- {claim}: {judge_claim(cells, *pair)}" for claim, pair in CLAIMS.items()]
    return lines


if __name__ == "__main__":
    print("\n".join(render_tables(read_cells())))
