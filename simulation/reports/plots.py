"""Curves as PNG and a table as Markdown from report.json and metrics.jsonl of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from client_service.evaluation.metrics import MeasureLabel
from client_service.federation.messages import RoundQuality
from shared.errors import DataError
from simulation.experiments.floors import START
from simulation.progress import step
from simulation.reports.averages import (
    FEW_SIGN,
    FEW_WORDS,
    MEANS,
    MOST_ROWS,
    QUANTILES,
    Figures,
    describe_harmed,
    mark_few_users,
    quantile,
    quantile_figures,
    shorten_notes,
)
from simulation.reports.report import best_floor, floor_means, measure_labels

EXPLAINED = (
    "Client mean: every client with a test user counts once; user mean: every test user does. Untrained: the closed "
    "form that each silo's own data give, which LPSFed starts at."
)


def read_report(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Reads the report of a run and its lines of metrics.

    Raises DataError for a folder without them.
    """
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return report, [json.loads(line) for line in lines]
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: expected a finished simulation, got no such file") from None
    except OSError as error:
        raise DataError(f"{error.filename}: expected a finished simulation's ({error.strerror})") from None
    except ValueError as error:
        raise DataError(f"{folder}: expected JSON written by a simulation ({error})") from None


@step("drawing the curves")
def draw_curves(measures: Mapping[str, MeasureLabel], rows: list[dict[str, Any]], path: Path) -> None:
    """Draws each measure of every client on validation data, by round.

    Of many clients the quantiles are drawn.
    """
    from matplotlib.figure import Figure  # here: it takes a second and a cache of fonts, and few commands draw

    figure = Figure(figsize=(5.5 * len(measures), 4), layout="constrained")
    axes = figure.subplots(1, len(measures), squeeze=False)[0]
    clients = _rounds_by_client(rows)
    for axis, (name, label) in zip(axes, measures.items(), strict=True):
        for line, values in _lines_of(clients, name).items():
            axis.plot([*values], [*values.values()], marker="o", label=line)
        axis.set(xlabel="round (0 is the start)", ylabel=f"{label.title}, validation", title=label.title)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=130)


def _lines_of(clients: Mapping[str, list[RoundQuality]], measure: str) -> dict[str, dict[int, float]]:
    """Returns the values by round of each client, or of each quantile over many clients."""
    found = {
        client: {entry.round: entry.values.get(measure, math.nan) for entry in rounds}
        for client, rounds in clients.items()
    }
    if len(found) <= MOST_ROWS:
        return found
    by_round: dict[int, list[float]] = {}
    for values in found.values():
        for number, value in values.items():
            if not math.isnan(value):
                by_round.setdefault(number, []).append(value)
    return {
        f"{name} of {len(found):,}": {number: quantile(values, share) for number, values in sorted(by_round.items())}
        for name, share in QUANTILES.items()
    }


def _rounds_by_client(rows: list[dict[str, Any]]) -> dict[str, list[RoundQuality]]:
    """Groups lines of metrics by client, clients in the order of their names."""
    rounds: dict[str, list[RoundQuality]] = {client: [] for client in sorted({row["client"] for row in rows})}
    for row in rows:
        entry = {name: value for name, value in row.items() if name != "client"}
        rounds[row["client"]].append(RoundQuality.model_validate(entry))
    return rounds


def markdown_table(report: Mapping[str, Any]) -> str:
    """Renders the run beside its floors on test items, client by client, with both means.

    Of many clients it has the quantiles.
    """
    labels = measure_labels(report).values()
    keys, clients = [label.key for label in labels], report["clients"]
    many = len(clients) > MOST_ROWS

    def list_columns(figures: Sequence[Figures | None]) -> list[Figures | None]:
        return [*quantile_figures(keys, figures).values()] if many else [*figures]

    titles = [*QUANTILES] if many else [mark_few_users(client) for client in clients]
    lines = [f"| method | {' | '.join(titles)} | client mean | user mean |", "|" + " --- |" * (len(titles) + 3)]
    names = {name: floor for name, floor in (*report["floors"].items(), (START, report.get("untrained"))) if floor}
    for name, floor in names.items():
        by_client = list_columns([report["floors_by_client"].get(client["client"], {}).get(name) for client in clients])
        means = [floor_means(floor, mean) for mean in MEANS]
        label = "untrained" if name == START else name
        lines.append(f"| {label} | {' | '.join(_join_figures(figures, keys) for figures in (*by_client, *means))} |")
    own = [*list_columns(clients), *(report[mean] for mean in MEANS)]
    lines.append(f"| **{report['strategy']}** | {' | '.join(_join_figures(figures, keys) for figures in own)} |")
    if report.get("centralised") is not None:
        cells = ["-"] * (len(titles) + 1) + [_join_figures(report["centralised"], keys)]
        lines.append(f"| closed form on all data | {' | '.join(cells)} |")
    said = f"{' / '.join(label.title for label in labels)}. {EXPLAINED}"
    return "\n".join([*lines, "", said, "", *_floor_verdicts(report, keys), *_notes(report), ""])


def _notes(report: Mapping[str, Any]) -> list[str]:
    many = len(report["clients"]) > MOST_ROWS
    few = any(client.get("few_test_users") for client in report["clients"]) and not many
    marked = [f"{FEW_SIGN} {FEW_WORDS}: its figures are mostly chance."] if few else []
    harmed = describe_harmed(report.get("silos", ())) if many else None
    marked += [] if harmed is None else [f"{harmed}."]
    return [f"- {note}" for note in (*marked, *shorten_notes(report.get("notes", ())))]


def _floor_verdicts(report: Mapping[str, Any], keys: list[str]) -> list[str]:
    """Describes whether the trained model is better than the best floor."""
    lines = []
    for mean in MEANS:
        for metric in keys:
            best, own = best_floor(report, metric, mean), report[mean][metric]
            if best is None or own is None:
                continue
            word = "ahead of" if own > best[1] else "**behind**" if own < best[1] else "equal to"
            said = f"{metric}, {mean.replace('_', ' ')}: {own:.4f}, {word} the best floor ({best[0]}, {best[1]:.4f})."
            lines.append(f"- {said}")
    return lines


def _join_figures(figures: Mapping[str, float | None] | None, keys: list[str]) -> str:
    if figures is None or all(figures[key] is None for key in keys):
        return "-"
    return " / ".join("-" if (value := figures[key]) is None else f"{value:.4f}" for key in keys)
