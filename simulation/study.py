"""An experiment -> its run, its floors and the files that keep both: config.json, metrics.jsonl, report.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation.console import count_bar, run_bars
from simulation.experiment import Experiment
from simulation.federation import Observe, Outcome
from simulation.floors import NO_BOUNDS, Bounds, measure_all_floors, measure_ceiling, too_large_to_pool
from simulation.report import build_report

Conduct = Callable[[Experiment, Observe], Outcome]


def run_study(
    experiment: Experiment, conduct: Conduct, *, edges_kept: float | None, shown: bool, floors: bool = True
) -> dict[str, Any]:
    """Run, hold against the floors unless they are not wanted, write the files, and give the report."""
    write_config(experiment)
    with run_bars(experiment.names, experiment.rounds, shown=shown) as observe:
        outcome = conduct(experiment, observe)
    bounds = measure_bounds(experiment, shown=shown) if floors else NO_BOUNDS
    report = build_report(experiment, outcome, bounds, edges_kept)
    _write_metrics(experiment.folder / "metrics.jsonl", outcome)
    (experiment.folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def measure_bounds(experiment: Experiment, *, shown: bool) -> Bounds:
    """The floors of every shard, and the ceiling where the shards together are not too large for it."""
    shards, cutoff, kept = experiment.shards, experiment.method.cutoff, experiment.floors_folder
    reason = too_large_to_pool(shards)
    with count_bar("floors", len(shards) + (reason is None), shown=shown) as done:
        floors = measure_all_floors(shards, cutoff, cache_of=experiment.cache_of, observe=done, kept=kept)
        ceiling = measure_ceiling(shards, cutoff, kept) if reason is None else None
        if reason is None:
            done("all silos' data")
    return Bounds(floors, ceiling, () if reason is None else (reason,))


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
