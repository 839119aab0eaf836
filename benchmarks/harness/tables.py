"""A column of a table -> Markdown: ours beside the paper's, the floors, every client, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.harness.paper import Paper
from benchmarks.harness.plan import UNTRAINED, Plan
from benchmarks.harness.statistics import FEWEST_UNITS, Comparison, Spread, least_corrected
from benchmarks.harness.summary import Column
from client_service.learning.quality import LABELS, METRICS, PRIMARY, K

DAGGER = "†"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of cells as they are."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def number(value: float | None, digits: int = 4) -> str:
    """-.0012 for -0.0012; a dash for nothing."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def label_of(plan: Plan, label: str) -> str:
    """With a dagger where the method needs items that several clients have."""
    return label + (DAGGER if any(row.label == label and row.shared_items for row in plan.rows()) else "")


def overall(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Client mean with its deviation over partitions and seeds, user mean, the paper's; ratios to the best floor and to
    the score that training starts at, on the partitions that the row itself has."""
    head = ["", "cells", "epochs"]
    for metric in column.metrics:
        head += [LABELS[metric].title, "user mean", "paper", "to best floor", "to untrained"]
    return markdown(head, (_overall_row(plan, column, paper, label) for label in column.rows))


def _overall_row(plan: Plan, column: Column, paper: Paper, label: str) -> list[str]:
    samples = column.rows[label]
    epochs = sorted({sample.line["epochs"] for sample in samples if sample.seed is not None})
    cells = [label_of(plan, label), str(len(samples)), ", ".join(map(str, epochs)) or "-"]
    for metric in column.metrics:
        own = column.spread(label, lambda sample, m=metric: sample.mean(m))  # type: ignore[misc]
        users = column.spread(label, lambda sample, m=metric: sample.user_mean(m))  # type: ignore[misc]
        bases = (column.best_floors(metric), column.by_partition(UNTRAINED, metric))
        ratios = [_ratio(column.ratio(label, metric, base)) for base in bases]
        cells += [_spread(own), number(users.mean), number(paper.figure(column.name, label, metric)), *ratios]
    return cells


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _spread(found: Spread) -> str:
    return number(found.mean) + (f" ± {number(found.deviation)}" if found.count > 1 else "")


def by_client(plan: Plan, column: Column) -> list[str]:
    """Every measure of every client, means over seeds, one table a partition."""
    lines = ["<details><summary>every client</summary>", ""]
    partitions = sorted({sample.partition for samples in column.rows.values() for sample in samples})
    titles = " / ".join(METRICS[metric].title for metric in column.metrics)
    for partition in partitions:
        lines += [f"Partition {partition}, {titles}@{K}, means over seeds.", "", *_clients(plan, column, partition)]
    return [*lines, "</details>", ""]


def _clients(plan: Plan, column: Column, partition: int) -> list[str]:
    found = {label: [s for s in samples if s.partition == partition] for label, samples in column.rows.items()}
    found = {label: samples for label, samples in found.items() if samples}
    first = next(iter(found.values()))[0].clients
    names = [client["client"] for client in first]
    head = ["", *(f"{one['client']}<br>{one['users']:,} × {one['items']:,}" for one in first)]
    rows = []
    for label, samples in found.items():
        figures = [{one["client"]: one for one in sample.clients} for sample in samples]
        means = {(n, m): sum(of[n][m] for of in figures) / len(figures) for n in names for m in column.metrics}
        rows.append([label_of(plan, label), *(" / ".join(number(means[n, m]) for m in column.metrics) for n in names)])
    return markdown(head, rows)


def verdicts(plan: Plan, column: Column) -> list[str]:
    """The reference row against each other one, by each metric, the primary one first."""
    lines: list[str] = []
    for metric in sorted(column.metrics, key=lambda one: one != PRIMARY):
        found = column.against(plan.reference, metric)
        if found:
            said = f"{plan.reference} against the others, {LABELS[metric].title}: {_power(found)}"
            lines += [said, "", *_verdicts(plan, found)]
    return lines


def _power(found: dict[str, Comparison]) -> str:
    """How many units and rows there are, and what they can show at best."""
    units = max(one.units for one in found.values())
    rows = sum(not math.isnan(one.wilcoxon) for one in found.values())
    if not rows:
        return f"{units} units, fewer than the {FEWEST_UNITS} that a test needs."
    least = number(least_corrected(units, rows), 3)
    return f"{units} units, {rows} rows compared; no p can be below {least} after Holm."


def _verdicts(plan: Plan, found: dict[str, Comparison]) -> list[str]:
    head = ["against", "units", "difference", "95 % interval", "Wilcoxon p", "t-test p", "Holm p", "verdict"]
    rows = []
    for label, one in found.items():
        few = math.isnan(one.low)
        span = "-" if few else f"{number(one.low)} to {number(one.high)}"
        p_values = [number(value, 3) for value in (one.wilcoxon, one.t, one.corrected)]
        rows.append([label_of(plan, label), str(one.units), number(one.difference), span, *p_values, one.verdict])
    return markdown(head, rows)
