"""Curves as PNG and a table as Markdown from report.json and metrics.jsonl of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client_service.evaluation.metrics import MeasureLabel
from client_service.federation.messages import RoundQuality
from shared.errors import DataError
from simulation.experiments.floors import START
from simulation.progress import step
from simulation.reports.averages import FEW_SIGN, FEW_WORDS, MEANS, mark_few_users
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
    """Draws each measure of every client on validation data, by round."""
    from matplotlib.figure import Figure  # here: it takes a second and a cache of fonts, and few commands draw

    figure = Figure(figsize=(5.5 * len(measures), 4), layout="constrained")
    axes = figure.subplots(1, len(measures), squeeze=False)[0]
    for axis, (name, label) in zip(axes, measures.items(), strict=True):
        for client, rounds in _rounds_by_client(rows).items():
            values = [entry.values.get(name, math.nan) for entry in rounds]
            axis.plot([entry.round for entry in rounds], values, marker="o", label=client)
        axis.set(xlabel="round (0 is the start)", ylabel=f"{label.title}, validation", title=label.title)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(path, dpi=130)


def _rounds_by_client(rows: list[dict[str, Any]]) -> dict[str, list[RoundQuality]]:
    """Groups lines of metrics by client, clients in the order of their names."""
    rounds: dict[str, list[RoundQuality]] = {client: [] for client in sorted({row["client"] for row in rows})}
    for row in rows:
        entry = {name: value for name, value in row.items() if name != "client"}
        rounds[row["client"]].append(RoundQuality.model_validate(entry))
    return rounds


def markdown_table(report: Mapping[str, Any]) -> str:
    """Renders the run beside its floors on test items, client by client, with both means."""
    labels = measure_labels(report).values()
    keys, clients = [label.key for label in labels], report["clients"]
    lines = [f"| method | {' | '.join(map(mark_few_users, clients))} | client mean | user mean |"]
    lines.append("|" + " --- |" * (len(clients) + 3))
    names = {name: floor for name, floor in (*report["floors"].items(), (START, report.get("untrained"))) if floor}
    for name, floor in names.items():
        by_client = [report["floors_by_client"].get(client["client"], {}).get(name) for client in clients]
        means = [floor_means(floor, mean) for mean in MEANS]
        label = "untrained" if name == START else name
        lines.append(f"| {label} | {' | '.join(_join_figures(figures, keys) for figures in (*by_client, *means))} |")
    own = [*clients, *(report[mean] for mean in MEANS)]
    lines.append(f"| **{report['strategy']}** | {' | '.join(_join_figures(figures, keys) for figures in own)} |")
    if report.get("centralised") is not None:
        cells = ["-"] * (len(clients) + 1) + [_join_figures(report["centralised"], keys)]
        lines.append(f"| closed form on all data | {' | '.join(cells)} |")
    said = f"{' / '.join(label.title for label in labels)}. {EXPLAINED}"
    return "\n".join([*lines, "", said, "", *_floor_verdicts(report, keys), *_notes(report), ""])


def _notes(report: Mapping[str, Any]) -> list[str]:
    few = any(client.get("few_test_users") for client in report["clients"])
    marked = [f"{FEW_SIGN} {FEW_WORDS}: its figures are mostly chance."] if few else []
    return [f"- {note}" for note in (*marked, *report.get("notes", ()))]


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
