"""Markdown tables of a column: our figures, the paper's, floors, clients and verdicts.

Some tables show groups of clients, users and items besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.common import render_table
from benchmarks.harness.groups import ACTIVITY, STRUCTURE, group_users, group_value, structure_groups
from benchmarks.harness.plan import UNTRAINED, Paper, Plan
from benchmarks.harness.statistics import FEWEST_UNITS, Comparison, Spread, least_corrected
from benchmarks.harness.summary import Client, Column, Sample, mean_of_known, user_mean
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY, TITLE, K
from simulation.reports.averages import FEW_SIGN, FEW_USERS

DAGGER = "†"


def markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table, with a blank line after it."""
    return [*render_table(head, list(rows)).split("\n"), ""]


def format_number(value: float | None, digits: int = 4) -> str:
    """Formats a number, such as -.0012; a dash for None or NaN."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def join_cells(cells: Iterable[str]) -> str:
    """Joins several figures in one cell; a dash if all are missing."""
    every = list(cells)
    return "-" if set(every) == {"-"} else " / ".join(every)


def mark_label(plan: Plan, label: str) -> str:
    """Adds a dagger to the label of a method that needs shared items."""
    return label + (DAGGER if any(row.label == label and row.shared_items for row in plan.rows()) else "")


def overall_table(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Renders client means, user means, the paper's figures, and ratios.

    Client means have their deviation over partitions and seeds. Ratios of both means are to the best floor and to the
    untrained start, on the partitions that the row itself has.
    """
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
    """Renders every measure of every client, means over seeds, one table per partition."""
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
    """Renders the reference row against each other row, by metric, the primary first."""
    lines: list[str] = []
    for metric in sorted(column.metrics, key=lambda name: name != PRIMARY):
        comparisons = column.compare_rows(plan.reference, metric)
        if comparisons:
            said = f"{plan.reference} against the others, {LABELS[metric].title}: {_describe_power(comparisons)}"
            lines += [said, "", *_verdict_table(plan, comparisons)]
    return lines


def _describe_power(comparisons: dict[str, Comparison]) -> str:
    """Describes the number of units and rows, and the smallest possible p."""
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


def structure_table(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Renders means over large, medium and small clients (Table 2)."""
    head, titles = [""], [LABELS[metric].title for metric in column.metrics]
    for name, _ in STRUCTURE:
        first, *others = titles
        head += [f"{name}: {first}", *others, f"{TITLE}, user mean", "paper"]
    rows = []
    for label, samples in column.rows.items():
        cells = [mark_label(plan, label)]
        for name, _ in STRUCTURE:
            groups = [structure_groups(sample.clients)[name] for sample in samples]
            means = [
                mean_of_known(mean_of_known(client[metric] for client in group) for group in groups)
                for metric in column.metrics
            ]
            means.append(mean_of_known(user_mean(group, PRIMARY) for group in groups))
            cells += [*map(format_number, means), _join_figures(paper.find_figure(column.name, label, name))]
        rows.append(cells)
    first_sample = next(iter(column.rows.values()))[0]
    sizes = [f"{name}: {len(group)} clients" for name, group in structure_groups(first_sample.clients).items()]
    return [f"Clients by nodes: {', '.join(sizes)}.", "", *markdown_lines(head, rows)]


def activity_tables(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Renders the primary measure of users and items by activity (Table 3)."""
    lines: list[str] = []
    for kind in ("users", "items"):
        head = [kind, *(part for name in ACTIVITY for part in ([name, "paper"] if kind == "users" else [name]))]
        rows = [_activity_row(plan, column, paper, label, kind) for label in column.rows]
        lines += [f"{TITLE} by groups of {kind}, client mean / user mean:", "", *markdown_lines(head, rows)]
    return lines


def _activity_row(plan: Plan, column: Column, paper: Paper, label: str, kind: str) -> list[str]:
    cells = [mark_label(plan, label)]
    for group in ACTIVITY:
        means = [
            mean_of_known(mean(sample, kind, group) for sample in column.rows[label])
            for mean in (_activity_client_mean, _activity_user_mean)
        ]
        cells.append(join_cells(map(format_number, means)))
        if kind == "users":
            cells.append(format_number(paper.find_figure(column.name, label, group)))
    return cells


def _activity_client_mean(sample: Sample, kind: str, group: str) -> float:
    """Computes the primary measure's mean over clients with users in the group."""
    return mean_of_known(group_value(client, kind, group, PRIMARY) for client in sample.clients)


def _activity_user_mean(sample: Sample, kind: str, group: str) -> float:
    """Computes the primary measure's mean over all test users in the group."""
    in_group = [
        {PRIMARY: group_value(client, kind, group, PRIMARY), "test_users": group_users(client, kind, group)}
        for client in sample.clients
    ]
    return user_mean(in_group, PRIMARY)


def cost_table(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Renders time, memory and traffic (Table 9)."""
    head = ["", "s an epoch", "rounds to best", "run, s", "peak, MiB", "up, bytes", "down, bytes", "device"]
    names = ("epoch", "epochs", "total", "memory")
    head += [f"paper: {name}" for name in names]
    rows = []
    for label, samples in column.rows.items():
        if samples[0].seed is None:  # floors, and the untrained start: one process measures them all
            continue
        theirs = [str(paper.find_figure(column.name, label, name) or "-") for name in names]
        rows.append([mark_label(plan, label), *_cost_cells(samples), *theirs])
    said = (
        "Each run by itself and with a cache of its own, so that every row pays for its spectrum and its closed-form "
        "choices. One epoch: wall clock of the run over its epochs, with evaluation and all clients on one machine. "
        "Bytes: sum over clients and rounds. Rounds to best: mean over clients of the round that validation chose."
    )
    return [said, "", *markdown_lines(head, rows)]


def _cost_cells(samples: Sequence[Sample]) -> list[str]:
    line: dict[str, Any] = samples[0].line
    seconds, clients = run_seconds(line), samples[0].clients
    best = [client["best_round"] for client in clients if client.get("best_round") is not None]
    traffic = [f"{sum(client.get(key, 0) for client in clients):,}" for key in ("bytes_up", "bytes_down")]
    rounds = f"{sum(best) / len(best):.1f} of {line['rounds']}" if best else "-"
    memory = f"{line['peak_mib']:,.0f}" + (f" + {line['device_mib']:,.0f}" if line.get("device_mib") else "")
    epoch = f"{seconds / line['epochs']:.2f}" if line["epochs"] else "-"
    return [epoch, rounds, f"{seconds:.1f}", memory, *traffic, line["device"]]


def run_seconds(line: dict[str, Any]) -> float:
    """Returns the seconds of training with evaluation, or of the whole process."""
    seconds: dict[str, float] = line.get("seconds", {})
    return float(seconds.get("total", line["wall_seconds"]))


def sweep_tables(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Renders each swept setting with its values (Figure 3)."""
    del paper
    lines: list[str] = []
    for name, points in sweep_points(plan, column).items():
        rows = [[f"{value:g}", *_metric_means(column, label)] for value, label in points]
        head = [f"{LABELS[metric].title}, {mean}" for metric in column.metrics for mean in ("client mean", "user mean")]
        lines += markdown_lines([name, *head], rows)
    return lines


def sweep_points(plan: Plan, column: Column) -> dict[str, list[tuple[float, str]]]:
    """Returns (value, row) of each swept setting, ascending, measured rows only."""
    points_by_sweep: dict[str, list[tuple[float, str]]] = {}
    for row in plan.methods:
        if row.sweep and row.value is not None and row.label in column.rows:
            points_by_sweep.setdefault(row.sweep, []).append((row.value, row.label))
    return {name: sorted(points) for name, points in points_by_sweep.items()}


def _metric_means(column: Column, label: str) -> list[str]:
    return [
        format_number(column.row_spread(label, metric, mean).mean)
        for metric in column.metrics
        for mean in (Sample.client_mean, Sample.user_mean)
    ]


def _join_figures(figures: Any) -> str:
    return "-" if figures is None else " / ".join(map(format_number, figures))


VIEWS: dict[str, Callable[[Plan, Column, Paper], list[str]]] = {
    "structure": structure_table,
    "activity": activity_tables,
    "cost": cost_table,
    "sweep": sweep_tables,
}
