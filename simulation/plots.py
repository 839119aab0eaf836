"""report.json and metrics.jsonl of a run -> curves as PNG and a table as Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client_service.learning.quality import MeasureLabel
from client_service.schemas import RoundQuality
from shared.errors import DataError
from simulation.report import best_floor, measure_labels


def read_report(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The report of a run and its lines of metrics. DataError when the folder holds none."""
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


def draw_curves(measures: Mapping[str, MeasureLabel], rows: list[dict[str, Any]], path: Path) -> None:
    """Each of these measures of every client on validation data, by round."""
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
    """Lines of metrics -> each client's rounds, clients in the order of their names."""
    rounds: dict[str, list[RoundQuality]] = {client: [] for client in sorted({row["client"] for row in rows})}
    for row in rows:
        entry = {name: value for name, value in row.items() if name != "client"}
        rounds[row["client"]].append(RoundQuality.model_validate(entry))
    return rounds


def markdown_table(report: Mapping[str, Any]) -> str:
    """The run beside its floors, test items, client by client."""
    names, labels = [client["client"] for client in report["clients"]], measure_labels(report).values()
    keys = [label.key for label in labels]
    head = f"| method | {' | '.join(names)} | client mean | user mean |"
    lines = [head, "|" + " --- |" * (len(names) + 3)]
    for name in report["floors"]:
        cells = [_join_figures(report["floors_by_client"].get(client, {}).get(name), keys) for client in names]
        lines.append(f"| {name} | {' | '.join(cells)} | {_join_figures(report['floors'][name], keys)} | |")
    cells = [_join_figures(client, keys) for client in report["clients"]]
    means = f"{_join_figures(report['client_mean'], keys)} | {_join_figures(report['user_mean'], keys)}"
    lines.append(f"| **{report['strategy']}** | {' | '.join(cells)} | {means} |")
    return "\n".join(
        [*lines, "", f"{' / '.join(label.title for label in labels)}.", *_floor_verdicts(report, keys), ""]
    )


def _floor_verdicts(report: Mapping[str, Any], keys: list[str]) -> list[str]:
    """Whether the trained model is worth its training, in words."""
    lines = []
    for metric in keys:
        name, floor = best_floor(report, metric)
        own = report["client_mean"][metric]
        word = "ahead of" if own > floor else "**behind**" if own < floor else "equal to"
        lines.append(f"{metric}: {own:.4f}, {word} the best floor ({name}, {floor:.4f}).")
    return lines


def _join_figures(figures: Mapping[str, float] | None, keys: list[str]) -> str:
    return "-" if figures is None else " / ".join(f"{figures[key]:.4f}" for key in keys)
