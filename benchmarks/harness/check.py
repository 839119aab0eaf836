"""A quick run -> complaints: what must hold on any data and machine. No decimals, no times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.document import ResultsTable
from benchmarks.harness.plan import FLOORS, ROOT, SPECIAL, special_functions
from benchmarks.harness.summary import Column
from client_service.evaluation.metrics import PRIMARY

EMPTY_BODY = 64  # bytes: an update without a tensor is a container with nothing in it


def table_complaints(table: ResultsTable, root: Path = ROOT) -> list[str]:
    """Everything that is wrong; an empty list is a pass."""
    complaints = [f"{column.name}: {what}" for column in table.columns for what in _column_complaints(table, column)]
    check = special_functions(table.plan.name, root).get("check")
    more = [] if check is None else check(table.lines)
    return [f"{table.plan.name}: {what}" for what in (*complaints, *more)]


def _column_complaints(table: ResultsTable, column: Column) -> Iterator[str]:
    if column.measured < column.wanted:
        yield f"expected {column.wanted} cells, measured {column.measured}"
    for row in {cell.row.label: cell.row for cell in table.cells if cell.column == column.name}.values():
        if row.label not in column.rows and row.strategy not in (SPECIAL, FLOORS):
            yield f"expected the row {row.label!r}, got none"
    yield from _figure_complaints(column)
    yield from _traffic_complaints(column)
    yield from _order_complaints(table, column)


def _figure_complaints(column: Column) -> Iterator[str]:
    for label, samples in column.rows.items():
        tested = [client for sample in samples for client in sample.clients if client.get("test_users") != 0]
        values = [client[metric] for client in tested for metric in column.metrics]
        if not all(math.isfinite(value) and 0.0 <= value <= 1.0 for value in values):
            yield f"{label}: expected figures from 0 to 1, got others"


def _traffic_complaints(column: Column) -> Iterator[str]:
    """Local-only training sends nothing, any other federation something."""
    for label, samples in column.rows.items():
        for sample in samples:
            sent = [client["bytes_up"] for client in sample.clients if "bytes_up" in client]
            limit = EMPTY_BODY * sample.line["rounds"]
            if sample.line["strategy"] == "local" and any(size > limit for size in sent):
                yield f"{label}: expected nothing but empty containers to be sent, got {max(sent)} bytes"
            if sample.line["strategy"] in ("lpsfed", "fedavg") and not all(size > limit for size in sent):
                yield f"{label}: expected every client to send its update, got {min(sent)} bytes"


def _order_complaints(table: ResultsTable, column: Column) -> Iterator[str]:
    """What is planted in the synthetic data is more than popularity."""
    reference = table.plan.reference
    if {reference, "popularity"} <= column.rows.keys():
        own, popular = (column.row_spread(name, PRIMARY).mean for name in (reference, "popularity"))
        if own <= popular:
            yield f"expected {reference} above popularity, got {own:.4f} against {popular:.4f}"
