"""Outcome and floors -> report.json: the figures of one run, beside what needs no training."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from client_service.learning.quality import MeasureLabel, Measures
from client_service.schemas import QualityOut, RoundQuality
from client_service.tasks import task_named
from client_service.tasks.items import ITEMS
from shared.protocol.schemas import RunHistoryOut
from simulation.experiment import Experiment
from simulation.federation import Outcome
from simulation.floors import FLOORS, START

Floors = Mapping[str, Mapping[str, Measures | None]]
Figures = dict[str, float]
"""By the key of a measure."""
Labels = Mapping[str, MeasureLabel]


def build_report(experiment: Experiment, outcome: Outcome, floors: Floors, edges_kept: float | None) -> dict[str, Any]:
    """Everything that a run is judged by. Client mean: every client counts once; user mean: every test user does."""
    qualities, statuses = outcome.qualities, outcome.statuses
    tested = {name: quality.test or {} for name, quality in qualities.items()}
    users = {name: quality.test_users for name, quality in qualities.items()}
    trained = {name: _trained_rounds(quality) for name, quality in qualities.items()}
    labels = task_named(experiment.task).labels
    return {
        "task": experiment.task,
        "strategy": experiment.strategy,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "settings": experiment.method.model_dump(),
        "edges_kept": edges_kept,
        "client_mean": _weighted_mean(tested.values(), labels),
        "user_mean": _weighted_mean(tested.values(), labels, [users[name] for name in tested]),
        "clients": [_client_figures(name, quality, outcome.history) for name, quality in sorted(qualities.items())],
        "floors": {name: _floor_mean(name, floors, labels) for name in FLOORS},
        "untrained": _floor_mean(START, floors, labels),
        "floors_by_client": {
            client: {name: _labelled_figures(measures, labels) for name, measures in client_floors.items()}
            for client, client_floors in floors.items()
        },
        "bytes_up": {name: [entry.bytes_up for entry in rounds] for name, rounds in trained.items()},
        "bytes_down": {name: [entry.bytes_down for entry in rounds] for name, rounds in trained.items()},
        "seconds": _spent_seconds(outcome),
        "privacy": {name: status.privacy.model_dump() for name, status in statuses.items() if status.privacy},
        "digest": _parameters_digest(outcome),
    }


def measure_labels(report: Mapping[str, Any]) -> dict[str, MeasureLabel]:
    """The measures that a report has; one of an earlier version may lack the newest, and names no task."""
    labels = task_named(report.get("task", ITEMS.name)).labels
    return {name: label for name, label in labels.items() if label.key in report["client_mean"]}


def best_floor(report: Mapping[str, Any], metric: str) -> tuple[str, float]:
    """The floor with the highest client mean, and that."""
    known = {name: figures[metric] for name, figures in report["floors"].items() if figures is not None}
    name = max(known, key=lambda floor: known[floor])
    return name, known[name]


def _client_figures(name: str, quality: QualityOut, history: RunHistoryOut) -> dict[str, Any]:
    participants = history.rounds[-1].participants if history.rounds else ()
    last = next((participant for participant in participants if participant.client == name), None)
    trained = _trained_rounds(quality)
    return {
        "client": name,
        **(quality.test or {}),
        "users": quality.users,
        "items": quality.items,
        "edges": quality.edges,
        "test_users": quality.test_users,
        "best_round": quality.best_round,
        "rho": None if last is None else last.rho,
        "rhobar": None if last is None else last.rhobar,
        "margin": trained[-1].margin if trained else None,
        "saturated": max((entry.saturated for entry in trained), default=0.0),
        "xi_by_item_popularity": quality.angles,
        "start": quality.start,
        "recipe": quality.recipe,
    }


def _trained_rounds(quality: QualityOut) -> list[RoundQuality]:
    """The rounds in which something was sent; round 0 is the start."""
    return [entry for entry in quality.rounds if entry.round > 0 and entry.bytes_down > 0]


def _spent_seconds(outcome: Outcome) -> dict[str, Any]:
    """Sums over clients and rounds. Overhead a round: that of the client which nobody had to wait for."""
    rounds = [entry for quality in outcome.qualities.values() for entry in quality.rounds]
    by_round: dict[int, list[float]] = {}
    for entry in rounds:
        if entry.round > 0:
            by_round.setdefault(entry.round, []).append(entry.overhead_seconds)
    return {
        "spectrum": sum(quality.spectrum_seconds for quality in outcome.qualities.values()),
        "training": sum(entry.train_seconds for entry in rounds),
        "evaluation": sum(entry.evaluate_seconds for entry in rounds),
        "overhead": sum(min(waits) for waits in by_round.values()),
        "overhead_by_round": [min(waits) for _, waits in sorted(by_round.items())],
        "total": outcome.seconds,
    }


def _parameters_digest(outcome: Outcome) -> str:
    """sha256 over the final shared parameters of all clients, in the order of their names."""
    total = hashlib.sha256()
    for name, status in sorted(outcome.statuses.items()):
        total.update(f"{name}:{status.shared_digest};".encode())
    return total.hexdigest()


def _floor_mean(name: str, floors: Floors, labels: Labels) -> Figures | None:
    """A floor's client mean; None when it does not exist for some client, since the mean would be of others."""
    figures = [_labelled_figures(client_floors[name], labels) for client_floors in floors.values()]
    known = [row for row in figures if row is not None]
    return _weighted_mean(known, labels) if known and len(known) == len(figures) else None


def _labelled_figures(measures: Measures | None, labels: Labels) -> Figures | None:
    return None if measures is None else {labels[name].key: value for name, value in measures.values.items()}


def _weighted_mean(figures: Iterable[Mapping[str, float]], labels: Labels, weights: list[int] | None = None) -> Figures:
    rows = list(figures)
    shares = weights or [1] * len(rows)
    total = sum(shares) or 1
    keys = [label.key for label in labels.values()]
    return {key: math.fsum(row.get(key, 0.0) * w for row, w in zip(rows, shares, strict=True)) / total for key in keys}
