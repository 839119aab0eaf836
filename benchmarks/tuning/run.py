"""Settings of a table's methods chosen by validation, with equal numbers of trials.

A stopped search resumes from its studies. Trials see shards without test pairs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import locate_data, render_table
from benchmarks.harness.plan import Row, read_plan
from client_service.evaluation.metrics import TITLE
from simulation.experiments.blind import hide_test_pairs, write_blind_shards
from simulation.partitioning.sources import Cut, cut_shards
from simulation.reports.terminal import count_bar
from simulation.tuning.search import Search, open_study, run_search, spent_trials, summarise_search
from simulation.tuning.spaces import search_space

TABLE = "table1"  # its rows are searched
KEPT = ("strategy", "values", "validation", "default", "trials", "pruned", "failed", "epochs", "rounds")


def run(config: dict[str, Any], *, quick: bool, data: Path | None, out: Path) -> list[dict[str, Any]]:
    """Searches each method; returns the budget, validation before and after, and the values."""
    del quick
    with tempfile.TemporaryDirectory(dir=out) as folder:
        whole = cut_shards(locate_data(config["data"], data), Cut(config["clients"], "spectral"), Path(folder))
        paths = write_blind_shards(hide_test_pairs, whole.paths, out / "blind")
    rows = [row for row in read_plan(TABLE).methods if row.label in config.get("only", [row.label])]
    return [{"data": config["data"], "label": row.label, **_search_row(row, paths, config, out)} for row in rows]


def _search_row(row: Row, paths: tuple[Path, ...], config: dict[str, Any], out: Path) -> dict[str, Any]:
    begun = row.method | (config["item_tables"] if row.shared_items else {})
    base = row.model_copy(update={"method": begun}).method_settings()
    task = Search(paths, row.strategy, base, search_space(row.strategy, base), config["rounds"], cache=out / "kept")
    study = open_study(task, out / row.label)
    with count_bar(row.label, config["trials"] - len(spent_trials(study)), shown=sys.stderr.isatty()) as observe:
        run_search(task, study, config["trials"], observe)
    best = summarise_search(task, study)
    return {**{key: best[key] for key in KEPT}, "chosen": choose_values(best, config["worth"])}


def choose_values(best: dict[str, Any], worth: float) -> dict[str, Any]:
    """Returns the best values, or none where they gain no more than noise."""
    default = best["default"]
    return dict(best["values"]) if default is None or best["validation"] > default * (1 + worth) else {}


def render(rows: list[dict[str, Any]]) -> str:
    """Renders the budget, the validation measure before and after, and the choice."""
    first = rows[0]
    budget = f"{first['data']}, partition 0, seed 0: {first['trials']} trials a method, {first['rounds']} rounds each."
    lines = [
        [row["label"], str(row["epochs"]), str(row["pruned"]), *_figure_cells(row), *_value_cells(row)] for row in rows
    ]
    head = [
        "",
        "epochs",
        "ended early",
        f"validation {TITLE}, as it was",
        "best",
        "best values",
        "chosen",
    ]
    left = [row.label for row in read_plan(TABLE).methods if row.label not in {row["label"] for row in rows}]
    missing = f"\n\nNot searched, at the defaults: {', '.join(left)}." if left else ""
    return budget + "\n\n" + render_table(head, lines) + missing


def _figure_cells(row: dict[str, Any]) -> list[str]:
    values = (row["default"], row["validation"])
    return ["-" if value is None else f"{value:.4f}".removeprefix("0") for value in values]


def _value_cells(row: dict[str, Any]) -> list[str]:
    best, kept = (", ".join(f"{name} {value:.3g}" for name, value in row[key].items()) for key in ("values", "chosen"))
    return [best, kept or "as they were"]


def check(rows: list[dict[str, Any]]) -> list[str]:
    """Checks equal budgets, and that no search ends below its start."""
    budgets = {(row["trials"], row["rounds"]) for row in rows}
    complaints = [] if len(budgets) == 1 else [f"expected the same budget for every method, got {sorted(budgets)}"]
    worse = [row["label"] for row in rows if row["default"] is not None and row["validation"] < row["default"]]
    return complaints + [f"expected no method below where it began, got {label}" for label in worse]
