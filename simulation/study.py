"""An experiment -> its run, its floors and the files that keep both: config.json, metrics.jsonl, report.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation.console import count_bar, run_bars
from simulation.experiment import Experiment
from simulation.federation import Observe, Outcome
from simulation.floors import measure_all_floors
from simulation.report import build_report

Conduct = Callable[[Experiment, Observe], Outcome]


def run_study(experiment: Experiment, conduct: Conduct, *, edges_kept: float | None, shown: bool) -> dict[str, Any]:
    """Run, hold against the floors, write the files, and give the report."""
    write_config(experiment)
    with run_bars(experiment.names, experiment.rounds, shown=shown) as observe:
        outcome = conduct(experiment, observe)
    with count_bar("floors", len(experiment.shards), shown=shown) as done:
        floors = measure_all_floors(
            experiment.shards, experiment.method.cutoff, cache_of=experiment.cache_of, observe=done
        )
    report = build_report(experiment, outcome, floors, edges_kept)
    _write_metrics(experiment.folder / "metrics.jsonl", outcome)
    (experiment.folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def write_config(experiment: Experiment) -> None:
    """Everything that is needed to run the experiment again."""
    config = {
        "shards": [str(path) for path in experiment.shards],
        "strategy": experiment.strategy,
        "rounds": experiment.rounds,
        "seed": experiment.seed,
        "threads": experiment.threads,
        "device": experiment.device,
        "method": experiment.method.model_dump(),
        "privacy": dict(experiment.privacy),
    }
    experiment.folder.mkdir(parents=True, exist_ok=True)
    (experiment.folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _write_metrics(path: Path, outcome: Outcome) -> None:
    """One JSON line a client and round."""
    lines = [
        json.dumps({"client": name, **entry.model_dump()})
        for name, quality in sorted(outcome.qualities.items())
        for entry in quality.rounds
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
