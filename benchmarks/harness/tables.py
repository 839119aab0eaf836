"""A column of a table -> Markdown: ours beside the paper's, the floors, every client, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.common import render_table
from benchmarks.harness.paper import Paper
from benchmarks.harness.plan import UNTRAINED, Plan
from benchmarks.harness.statistics import FEWEST_UNITS, Comparison, Spread, least_corrected
from benchmarks.harness.summary import Client, Column, Sample
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY, K
from simulation.reports.averages import FEW_SIGN, FEW_USERS

DAGGER = "†"


def markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table and a blank line after it."""
    return [*render_table(head, list(rows)).split("\n"), ""]


def format_number(value: float | None, digits: int = 4) -> str:
    """-.0012 for -0.0012; a dash for nothing."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def join_cells(cells: Iterable[str]) -> str:
    """Several figures in one cell; a dash where there is none of them."""
    every = list(cells)
    return "-" if set(every) == {"-"} else " / ".join(every)


def mark_label(plan: Plan, label: str) -> str:
    """The label, with a dagger where the method needs items that several clients have."""
    return label + (DAGGER if any(row.label == label and row.shared_items for row in plan.rows()) else "")


def overall_table(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Client mean with its deviation over partitions and seeds, user mean, the paper's; ratios of both means to the
    best floor and to the score that training starts at, on the partitions that the row itself has."""
    head = ["", "cells", "epochs"]
    for metric in column.metrics:
        head += [LABELS[metric].title, "user mean", "paper", "to best floor", "to untrained"]
    return markdown_lines(head, (_overall_row(plan, column, paper, label) for label in column.rows))


def _overall_row(plan: Plan, column: Column, paper: Paper, label: str) -> list[str]:
    samples = column.rows[label]
    epochs = sorted({sample.line["epochs"] for sample in samples if sample.seed is not None})
    cells = [mark_label(plan, label), str(len(samples)), ", ".join(map(str, epochs)) or "-"]
    for metric in column.metrics:
        own = column.row_spread(label, metric)
        users = column.row_spread(label, metric, Sample.user_mean)
        means = (Sample.client_mean, Sample.user_mean)
        floors = [column.mean_ratio(label, metric, column.best_floors(metric, mean), mean) for mean in means]
        starts = [
            column.mean_ratio(label, metric, column.by_partition(UNTRAINED, metric, mean), mean) for mean in means
        ]
        cells += [
            _format_spread(own),
            format_number(users.mean),
            format_number(paper.find_figure(column.name, label, metric)),
            _join_ratios(floors),
            _join_ratios(starts),
        ]
    return cells


def _join_ratios(ratios: Sequence[float | None]) -> str:
    return join_cells("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)


def _format_spread(spread: Spread) -> str:
    return format_number(spread.mean) + (f" ± {format_number(spread.deviation)}" if spread.count > 1 else "")


def client_tables(plan: Plan, column: Column) -> list[str]:
    """Every measure of every client, means over seeds, one table a partition."""
    lines = ["<details><summary>every client</summary>", ""]
    partitions = sorted({sample.partition for samples in column.rows.values() for sample in samples})
    titles = " / ".join(METRICS[metric].title for metric in column.metrics)
    for partition in partitions:
        lines += [f"Partition {partition}, {titles}@{K}, means over seeds.", ""]
        lines += _client_table(plan, column, partition)
    return [*lines, "</details>", ""]


def _client_table(plan: Plan, column: Column, partition: int) -> list[str]:
    rows_here = {label: [s for s in samples if s.partition == partition] for label, samples in column.rows.items()}
    rows_here = {label: samples for label, samples in rows_here.items() if samples}
    first = next(iter(rows_here.values()))[0].clients
    names = [client["client"] for client in first]
    head = ["", *map(_client_head, first)]
    rows = []
    for label, samples in rows_here.items():
        figures = [{client["client"]: client for client in sample.clients} for sample in samples]
        cells = []
        for name in names:
            means = (sum(clients[name][metric] for clients in figures) / len(figures) for metric in column.metrics)
            cells.append(join_cells(map(format_number, means)))
        rows.append([mark_label(plan, label), *cells])
    return markdown_lines(head, rows)


def _client_head(client: Client) -> str:
    few = client.get("test_users", FEW_USERS) < FEW_USERS
    return f"{client['client']}{f' {FEW_SIGN}' if few else ''}<br>{client['users']:,} × {client['items']:,}"


def verdict_tables(plan: Plan, column: Column) -> list[str]:
    """The reference row against each other one, by each metric, the primary one first."""
    lines: list[str] = []
    for metric in sorted(column.metrics, key=lambda name: name != PRIMARY):
        comparisons = column.compare_rows(plan.reference, metric)
        if comparisons:
            said = f"{plan.reference} against the others, {LABELS[metric].title}: {_describe_power(comparisons)}"
            lines += [said, "", *_verdict_table(plan, comparisons)]
    return lines


def _describe_power(comparisons: dict[str, Comparison]) -> str:
    """How many units and rows there are, and what they can show at best."""
    units = max(comparison.units for comparison in comparisons.values())
    rows = sum(not math.isnan(comparison.wilcoxon) for comparison in comparisons.values())
    if not rows:
        return f"{units} units, fewer than the {FEWEST_UNITS} that a test needs."
    least = format_number(least_corrected(units, rows), 3)
    return f"{units} units, {rows} rows compared; no p can be below {least} after Holm."


def _verdict_table(plan: Plan, comparisons: dict[str, Comparison]) -> list[str]:
    head = ["against", "units", "difference", "95 % interval", "Wilcoxon p", "t-test p", "Holm p", "verdict"]
    rows = []
    for label, comparison in comparisons.items():
        few = math.isnan(comparison.low)
        span = "-" if few else f"{format_number(comparison.low)} to {format_number(comparison.high)}"
        p_values = [format_number(value, 3) for value in (comparison.wilcoxon, comparison.t, comparison.corrected)]
        difference = format_number(comparison.difference)
        row = [mark_label(plan, label), str(comparison.units), difference, span, *p_values, comparison.verdict]
        rows.append(row)
    return markdown_lines(head, rows)
