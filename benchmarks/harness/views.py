"""A column of a table -> what some tables show besides: groups of clients or users, costs, and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness.groups import ACTIVITY, STRUCTURE, group_users, group_value, structure_groups
from benchmarks.harness.paper import Paper
from benchmarks.harness.plan import Plan
from benchmarks.harness.summary import Column, Sample, mean_of_known, user_mean
from benchmarks.harness.tables import format_number, join_cells, mark_label, markdown_lines
from client_service.evaluation.metrics import LABELS, PRIMARY, TITLE


def structure_table(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Table 2: means over the large, the medium and the small clients."""
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
    """Table 3: the primary measure of users, and of items, with few, more and most records."""
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
    """Of the primary measure, over the clients that have a test user in the group."""
    return mean_of_known(group_value(client, kind, group, PRIMARY) for client in sample.clients)


def _activity_user_mean(sample: Sample, kind: str, group: str) -> float:
    """Of the primary measure, over all test users in the group."""
    in_group = [
        {PRIMARY: group_value(client, kind, group, PRIMARY), "test_users": group_users(client, kind, group)}
        for client in sample.clients
    ]
    return user_mean(in_group, PRIMARY)


def cost_table(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Table 9: time, memory and traffic."""
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
    """Wall clock of training with evaluation where the run measured it, else of what its process did."""
    seconds: dict[str, float] = line.get("seconds", {})
    return float(seconds.get("total", line["wall_seconds"]))


def sweep_tables(plan: Plan, column: Column, paper: Paper) -> list[str]:
    """Figure 3 as figures: each swept setting with its values."""
    del paper
    lines: list[str] = []
    for name, points in sweep_points(plan, column).items():
        rows = [[f"{value:g}", *_metric_means(column, label)] for value, label in points]
        head = [f"{LABELS[metric].title}, {mean}" for metric in column.metrics for mean in ("client mean", "user mean")]
        lines += markdown_lines([name, *head], rows)
    return lines


def sweep_points(plan: Plan, column: Column) -> dict[str, list[tuple[float, str]]]:
    """Swept setting -> (value, row), ascending, measured rows alone."""
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
