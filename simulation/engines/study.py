"""Experiment with its run, its floors and its files: config.json, metrics.jsonl, report.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Observe, Outcome
from simulation.experiments.floors import NO_BOUNDS
from simulation.experiments.tasks import simulated_task
from simulation.reports.report import build_report
from simulation.reports.terminal import run_bars

RunExperiment = Callable[[Experiment, Observe], Outcome]


def run_study(
    experiment: Experiment, conduct: RunExperiment, *, edges_kept: float | None, shown: bool, floors: bool = True
) -> dict[str, Any]:
    """Runs an experiment, compares it with the floors, writes the files, and returns the report.

    floors: False leaves the comparison out.
    """
    write_config(experiment)
    with run_bars(experiment.names, experiment.rounds, shown=shown) as observe:
        outcome = conduct(experiment, observe)
    measure = simulated_task(experiment.task).measure_bounds
    bounds = measure(experiment, shown=shown) if floors else NO_BOUNDS
    report = build_report(experiment, outcome, bounds, edges_kept)
    _write_metrics(experiment.folder / "metrics.jsonl", outcome)
    (experiment.folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def write_config(experiment: Experiment) -> None:
    """Writes all settings that are needed to run the experiment again."""
    config = {
        "shards": [str(path) for path in experiment.shards],
        "task": experiment.task,
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
    """Writes one JSON line a client and round."""
    lines = [
        json.dumps({"client": name, **entry.model_dump()})
        for name, quality in sorted(outcome.qualities.items())
        for entry in quality.rounds
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
