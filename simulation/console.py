"""Figures -> what a person sees in a terminal: bars, tables, sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from simulation.federation import Observe
from simulation.federation import Progress as RunProgress
from simulation.report import METRICS, best_floor

OUT = Console()
ERR = Console(stderr=True)


@contextmanager
def run_bars(names: tuple[str, ...], rounds: int, *, shown: bool) -> Iterator[Observe]:
    """A bar a client: rounds done, phase, time passed and left. On stderr, so that stdout stays for results."""
    with _progress(shown) as progress:
        tasks = {name: progress.add_task(name, total=rounds, phase="starting") for name in names}

        def observe(seen: RunProgress) -> None:
            for name, status in seen.statuses.items():
                done = max(0, status.round - (status.phase not in ("waiting", "finished", "evaluating")))
                progress.update(tasks[name], completed=min(done, rounds), phase=status.problem or status.phase)

        yield observe


@contextmanager
def count_bar(what: str, total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """One bar for a number of like things."""
    with _progress(shown) as progress:
        task: TaskID = progress.add_task(what, total=total, phase="")
        yield lambda done: progress.update(task, advance=1, phase=done)


def _progress(shown: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[phase]}"),
    )
    return Progress(*columns, console=ERR, disable=not shown, transient=False)


def partition_table(summary: Mapping[str, Any]) -> Table:
    kept = f"{100 * summary['edges_kept']:.1f} % of training edges kept"
    table = Table(title=f"{summary['data']}: {summary['method']} partition {summary['partition']}, {kept}")
    for column in ("client", "users", "items", "train", "valid", "test"):
        table.add_column(column, justify="left" if column == "client" else "right")
    for client in summary["clients"]:
        table.add_row(*(f"{client[key]:,}" if key != "client" else client[key] for key in client))
    return table


def quality_table(report: Mapping[str, Any]) -> Table:
    """Test Recall@20 / NDCG@20 of every client beside the floors; a model that loses to a floor is red."""
    names = [client["client"] for client in report["clients"]]
    table = Table(title="Recall@20 / NDCG@20 on test items")
    for column in ("", *names, "client mean", "user mean"):
        table.add_column(column, justify="right" if column else "left")
    for floor, figures in report["floors"].items():
        cells = [_cell(report["floors_by_client"][name].get(floor)) for name in names]
        table.add_row(floor, *cells, _cell(figures), "", style="dim")
    loses = any(report["client_mean"][metric] < best_floor(report, metric)[1] for metric in METRICS)
    cells = [_cell(client) for client in report["clients"]]
    means = (_cell(report["client_mean"]), _cell(report["user_mean"]))
    table.add_row(report["strategy"], *cells, *means, style="bold red" if loses else "bold green")
    return table


def crossing_table(entries: Mapping[str, list[dict[str, Any]]]) -> Table:
    """What left each client, from its own ledger: fields and bytes."""
    table = Table(title="What left each client (from its ledger)")
    for column in ("client", "call", "times", "fields", "bytes"):
        table.add_column(column, justify="right" if column in ("times", "bytes") else "left")
    for name, ledger in entries.items():
        intents = [entry for entry in ledger if entry["kind"] == "intent"]
        for call in sorted({entry["call"] for entry in intents}):
            same = [entry for entry in intents if entry["call"] == call]
            table.add_row(name, call, str(len(same)), _fields(same[-1]), f"{sum(entry['bytes'] for entry in same):,}")
    return table


def _fields(entry: Mapping[str, Any]) -> str:
    if entry["call"] == "join":
        return "name, declaration" + (", counts" if entry["join"]["counts"] else "")
    if entry["call"] != "update":
        return "-"
    tensors = [f"{tensor['name']} {'x'.join(map(str, tensor['shape']))}" for tensor in entry["tensors"]]
    return "\n".join([*tensors, *(f"{name} (one number)" for name in entry["scalars"])]) or "nothing"


def _cell(figures: Mapping[str, float] | None) -> str:
    return "-" if figures is None else f"{figures['recall@20']:.4f} / {figures['ndcg@20']:.4f}"
