"""Shared helpers of the benchmarks: data folders, the paper's figures, Markdown tables."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from simulation.partitioning.sources import SYNTHETIC

ROOT = Path(__file__).parent
VARIABLE = "LPSFED_TEST_DATA"
STEADY: Any = {"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 7}
"""Settings of plots by which the same results give the same bytes."""


def data_folder(given: str | None) -> Path | None:
    """Returns the folder of --data, or of the environment variable."""
    named = given or os.environ.get(VARIABLE)
    return Path(named).resolve() if named else None


def locate_data(name: str, data: Path | None) -> str:
    """Returns a data set for `cut_shards`; raises SettingsError if it is not found."""
    if name == SYNTHETIC:
        return name
    if data is None or not (data / name).exists():
        raise SettingsError(f"data set {name!r}: expected it in the folder that --data names, got {data}")
    return str(data / name)


def paper_figures(table: str, column: str) -> dict[str, dict[str, Any]]:
    """Reads a column of paper.toml as row to figures; empty if the paper has none."""
    columns: dict[str, dict[str, dict[str, Any]]] = tomllib.loads((ROOT / table / "paper.toml").read_text("utf-8"))[
        "columns"
    ]
    return columns.get(column, {})


def render_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Renders a table in GitHub's Markdown."""
    every = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in every)
