"""Report of one run, report.json: its figures beside those without training."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from client_service.evaluation.metrics import MeasureLabel, Measures
from client_service.federation.messages import QualityOut, RoundQuality
from client_service.federation.run_records import quality_warnings
from shared.protocol.schemas import ParticipantOut
from shared.strategies import build_strategy
from shared.strategies.agreement import declare_federation
from shared.sums import find_sum, list_sums, method_of_part
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome
from simulation.experiments.floors import NO_BOUNDS, START, Bounds, ByName
from simulation.reports.averages import CLIENT_MEAN, FEW_USERS, USER_MEAN, Figures, client_mean, user_mean

Labels = Mapping[str, MeasureLabel]
BothMeans = dict[str, Any]
"""The client mean by the key of a measure, as ever, and both means under `client_mean` and `user_mean`."""


def build_report(
    experiment: Experiment, outcome: Outcome, bounds: Bounds = NO_BOUNDS, edges_kept: float | None = None
) -> dict[str, Any]:
    """Builds the report of a run.

    client_mean: every client with a test user counts once; user_mean: every test user does. alone, together,
    centralised: user means of what each silo has by itself, of what it serves after the run, and of the closed form on
    the data of all silos; None if it was not computed. silos: of each its test users, alone, together and their
    ratio by the primary measure, None if it is not known; `late` where it joined after the run.
    """
    from client_service.tasks import task_named  # with torch, which who prints a table does without

    qualities, statuses = outcome.qualities, outcome.statuses
    trained = {name: _trained_rounds(quality) for name, quality in qualities.items()}
    task = task_named(experiment.task)
    labels, late = task.labels, {path.name for path in experiment.late}
    silos = _silo_figures(qualities, bounds, labels, labels[task.primary].key, late)
    last = {one.client: one for one in outcome.history.rounds[-1].participants} if outcome.history.rounds else {}
    own = _both_means([(quality.test or {}, quality.test_users) for quality in qualities.values()], labels)
    return {
        "task": experiment.task,
        "strategy": experiment.strategy,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "settings": experiment.method.model_dump(),
        "edges_kept": edges_kept,
        "client_mean": own[CLIENT_MEAN],
        "user_mean": own[USER_MEAN],
        "together": own[USER_MEAN],
        **_bounding_figures(bounds, labels),
        "silos": silos,
        "gain": _mean_gain(silos),
        "bytes_of_sums": _sum_bytes(experiment),
        "clients": [_client_figures(name, quality, last.get(name)) for name, quality in sorted(qualities.items())],
        "bytes_up": {name: [entry.bytes_up for entry in rounds] for name, rounds in trained.items()},
        "bytes_down": {name: [entry.bytes_down for entry in rounds] for name, rounds in trained.items()},
        "seconds": _spent_seconds(outcome),
        "notes": [*_client_notes(qualities), *bounds.notes, *_training_notes(experiment, qualities)],
        "privacy": {name: status.privacy.model_dump() for name, status in statuses.items() if status.privacy},
        "digest": _parameters_digest(outcome),
    }


def _bounding_figures(bounds: Bounds, labels: Labels) -> dict[str, Any]:
    """Returns the figures without training, over all clients and of each, and of pooled data."""
    start = _floor_means(START, bounds.floors, labels)
    ceiling = None if bounds.ceiling is None else _means_of(bounds.ceiling, labels)
    return {
        "alone": None if start is None else start[USER_MEAN],
        "centralised": None if ceiling is None else ceiling[USER_MEAN],
        "floors": {name: _floor_means(name, bounds.floors, labels) for name in _floor_names(bounds)},
        "untrained": start,
        "floors_by_client": {
            client: {name: _labelled_figures(measures, labels) for name, measures in client_floors.items()}
            for client, client_floors in bounds.floors.items()
        },
    }


def _silo_figures(
    qualities: Mapping[str, QualityOut], bounds: Bounds, labels: Labels, primary: str, late: Collection[str]
) -> list[dict[str, Any]]:
    """Compares each silo's own baseline with its model after the run.

    Where a mean gains, a silo may lose. gain: in the primary measure of the silo's test data, with its 95 %
    interval, where the silo has measured them.
    """
    found: list[dict[str, Any]] = []
    for name, quality in sorted(qualities.items()):
        alone = _labelled_figures(bounds.floors.get(name, {}).get(START), labels) or {}
        together = (quality.test or {}) if quality.test_users else {}
        compared = quality.comparison
        measure = primary if compared is None or compared.measure not in together else compared.measure
        before, after = alone.get(measure), together.get(measure)
        ratio = None if not before or after is None else after / before
        row = {"client": name, "users": quality.test_users, "alone": alone, "together": together, "ratio": ratio}
        if compared is not None and compared.groups:
            row |= {"measure": measure, "gain": compared.groups[0].gain.model_dump()}
        found.append(row | ({"late": True} if name in late else {}))
    return found


def _mean_gain(silos: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Computes the mean of the silos' gains with its 95 % interval; None without silos.

    Silos have different test data.
    """
    gains = [silo["gain"] for silo in silos if silo.get("gain")]
    if not gains:
        return None
    mean = sum(gain["mean"] for gain in gains) / len(gains)
    half = math.sqrt(sum(((gain["high"] - gain["low"]) / 2) ** 2 for gain in gains)) / len(gains)
    measure = next(silo["measure"] for silo in silos if silo.get("gain"))
    return {"measure": measure, "mean": mean, "low": mean - half, "high": mean + half, "silos": len(gains)}


def _sum_bytes(experiment: Experiment) -> dict[str, int]:
    """Counts the bytes that a silo sends for each sum of the run, by part."""
    method = experiment.agreed_method
    declared = declare_federation(build_strategy(experiment.strategy, method), method, secure=experiment.secure).sums
    rounds = {part: find_sum(method_of_part(method, part)).rounds(one) for part, one in list_sums(method).items()}
    sizes = {part: sum(math.prod(spec.shape) for spec in one.uploaded) for part, one in declared.items()}
    return {part: 4 * size * rounds.get(part, 1) for part, size in sizes.items()}


def _floor_names(bounds: Bounds) -> tuple[str, ...]:
    """Returns the names of the floors, the same for every client.

    The start is the model's own, and no floor.
    """
    first: ByName = next(iter(bounds.floors.values()), {})
    return tuple(name for name in first if name != START)


def measure_labels(report: Mapping[str, Any]) -> dict[str, MeasureLabel]:
    """Returns the labels of the measures in a report.

    A report of an earlier version may lack the newest, and names no task.
    """
    from client_service.tasks import task_named
    from client_service.tasks.items import ITEMS

    labels = task_named(report.get("task", ITEMS.name)).labels
    return {name: label for name, label in labels.items() if label.key in report["client_mean"]}


def floor_means(figures: Mapping[str, Any] | None, mean: str) -> Figures | None:
    """Returns a floor's `client_mean` or `user_mean`; None if it has none.

    A report of an earlier version has client means alone.
    """
    if figures is None:
        return None
    found: Figures | None = figures.get(mean, figures if mean == CLIENT_MEAN else None)
    return found


def best_floor(report: Mapping[str, Any], metric: str, mean: str = CLIENT_MEAN) -> tuple[str, float] | None:
    """Returns the floor with the highest mean, and the mean; None without floors."""
    means = {name: floor_means(figures, mean) for name, figures in report["floors"].items()}
    known = {name: value for name, row in means.items() if row is not None and (value := row[metric]) is not None}
    return max(known.items(), key=lambda one: one[1]) if known else None


def _client_figures(name: str, quality: QualityOut, last: ParticipantOut | None) -> dict[str, Any]:
    """Collects a client's figures; last: its row in the last round, if there was one."""
    trained = _trained_rounds(quality)
    return {
        "client": name,
        **{key: value if quality.test_users else None for key, value in (quality.test or {}).items()},
        "users": quality.users,
        "items": quality.items,
        "edges": quality.edges,
        "test_users": quality.test_users,
        "few_test_users": quality.test_users < FEW_USERS,
        "valid_users": quality.valid_users,
        "best_round": quality.best_round,
        "rho": None if last is None else last.rho,
        "rhobar": None if last is None else last.rhobar,
        "margin": trained[-1].margin if trained else None,
        "saturated": max((entry.saturated for entry in trained), default=0.0),
        "xi_by_item_popularity": quality.angles,
        "start": quality.start,
        "recipe": quality.recipe,
    }


def _client_notes(qualities: Mapping[str, QualityOut]) -> list[str]:
    """Returns notes on single clients."""
    notes = []
    for name, quality in sorted(qualities.items()):
        notes += [f"{name}: {warning}" for warning in quality_warnings(quality)]
        if quality.finished and not quality.test_users:
            notes.append(f"{name}: No test items: it has no figures and counts in no mean.")
    return notes


def _training_notes(experiment: Experiment, qualities: Mapping[str, QualityOut]) -> list[str]:
    """Returns a note where most clients gained nothing from training.

    Their validation items prefer the closed forms with which training began.
    """
    strategy = build_strategy(experiment.strategy, experiment.method)
    untrained = sum(quality.finished and quality.best_round == 0 for quality in qualities.values())
    may_stop = strategy.enough_rounds is None and "train" in type(strategy.settings).model_fields
    if not may_stop or 2 * untrained < len(qualities):
        return []
    words = f"Validation saw no gain from training at {untrained} of {len(qualities)} clients"
    return [f"{words}: --set strategy.train=false serves the closed forms alone, in seconds."]


def _trained_rounds(quality: QualityOut) -> list[RoundQuality]:
    """Returns the rounds with an exchange; round 0 is the start."""
    return [entry for entry in quality.rounds if entry.round > 0 and entry.bytes_down > 0]


def _spent_seconds(outcome: Outcome) -> dict[str, Any]:
    """Sums seconds over clients and rounds.

    silos: of the processor, for all that the silos computed; by_round: of each round by the clock; both without
    services alone.

    The overhead of a round is the smallest of all clients: the slowest client, which waits for nobody, has it.
    """
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
        "silos": outcome.silo_seconds,
        "by_round": [*outcome.round_seconds],
    }


def _parameters_digest(outcome: Outcome) -> str:
    """Computes the sha256 of the final shared parameters of all clients, ordered by name."""
    total = hashlib.sha256()
    for name, status in sorted(outcome.statuses.items()):
        total.update(f"{name}:{status.shared_digest};".encode())
    return total.hexdigest()


def _floor_means(name: str, floors: Mapping[str, ByName], labels: Labels) -> BothMeans | None:
    """Returns a floor's means; None when a client lacks it.

    The means would then be of other clients.
    """
    return _means_of({client: by_name.get(name) for client, by_name in floors.items()}, labels) if floors else None


def _means_of(measured: ByName, labels: Labels) -> BothMeans | None:
    known = [one for one in measured.values() if one is not None]
    if len(known) < len(measured):
        return None
    both = _both_means([(_labelled_figures(one, labels) or {}, one.users) for one in known], labels)
    return {**both[CLIENT_MEAN], **both}


def _both_means(figures: Sequence[tuple[Figures, int]], labels: Labels) -> dict[str, dict[str, float | None]]:
    """Computes both means of each client's (figures, test users)."""
    keys, rows, users = [label.key for label in labels.values()], [row for row, _ in figures], [n for _, n in figures]
    return {CLIENT_MEAN: client_mean(keys, rows, users), USER_MEAN: user_mean(keys, rows, users)}


def _labelled_figures(measures: Measures | None, labels: Labels) -> Figures | None:
    """Returns figures by the key of a measure, None for each without a test user."""
    if measures is None:
        return None
    return {labels[name].key: value if measures.users else None for name, value in measures.values.items()}
