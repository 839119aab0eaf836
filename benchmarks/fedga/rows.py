"""Rows of the session tables in results.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.jsonl")
IDENTITY = ("part", "data", "cut", "clients", "method", "model", "optimiser", "server", "seed", "rounds", "set")
"""Fields that identify a cell: of two lines with the same values the later one counts."""
Row = dict[str, Any]


def store_row(**row: Any) -> None:
    """Appends a row, and prints it without its curve."""
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print({key: value for key, value in row.items() if key != "curve"}, flush=True)


def read_rows() -> list[Row]:
    """Returns the last row of each cell."""
    found: dict[str, Row] = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found[identify_cell(row)] = row
    return list(found.values())


def identify_cell(row: Row) -> str:
    """Returns a key that is the same for all rows of one cell."""
    return json.dumps([row.get(name) for name in IDENTITY], sort_keys=True)


def find_rates(rows: Iterable[Row], **cell: Any) -> dict[str, float] | None:
    """Finds the rates chosen earlier for a cell with any seed; None without any."""
    same = (row for row in rows if all(row.get(name) == value for name, value in cell.items()))
    return next((row["rates"] for row in same if "rates" in row), None)
