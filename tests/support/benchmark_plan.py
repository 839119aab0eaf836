"""A small table, and lines of results as a cell's process would give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.cells import Cell, settings_hash
from benchmarks.harness.measure import Work
from benchmarks.harness.plan import REVISION, UNTRAINED, Plan, read_plan
from benchmarks.harness.store import Line
from shared.method.settings import method_settings

Answer = Callable[[Cell], Line]
CONFIG = """
title = "A table"
source = "Table 0"
seeds = [0, 1, 2]
partitions = [0]
rounds = 3

[[blocks]]
data = ["synthetic-400x240"]

[[methods]]
label = "FedMF"
strategy = "fedavg"
shared_items = true

[[methods]]
label = "LPSFed"
strategy = "lpsfed"
"""
PAPER = """
source = "Table 0"
notes = ["Paper: other data."]

[columns."synthetic-400x240"]
"LPSFed" = { recall = 0.1234, ndcg = 0.0567 }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of benchmarks with one table."""
    folder = tmp_path / "benchmarks" / "table0"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    (folder / "paper.toml").write_text(PAPER, encoding="utf-8")
    return folder.parent


@pytest.fixture
def plan(root: Path) -> Plan:
    return read_plan("table0", root=root)


def client(number: int, value: float, **more: Any) -> dict[str, Any]:
    sizes = {"users": 30 * number, "items": 10, "test_users": 10 * number, "best_round": 2, "bytes_up": 400}
    return {"client": f"client-{number}", "recall": value, "ndcg": value / 2, "bytes_down": 500, **sizes, **more}


@pytest.fixture
def answer() -> Answer:
    """Figures that differ by row, seed and client."""

    def line(cell: Cell) -> Line:
        level = {"LPSFed": 0.4, "FedMF": 0.3, "local": 0.35, "centralised": 0.5}.get(cell.row.label, 0.2)
        clients = [client(number, level + 0.01 * cell.seed + 0.02 * number) for number in (1, 2)]
        if cell.row.strategy == "local":
            clients = [{**one, "bytes_up": 0} for one in clients]
        floors = {"popularity": [client(1, 0.1), client(2, 0.2)], "EASE": None}
        floors[UNTRAINED] = [client(1, 0.16), client(2, 0.24)]
        figures = {"floors": floors} if cell.row.strategy == "floors" else {"clients": clients}
        settings = cell.outcome_settings()
        head = {"identity": cell.identity(), "settings": settings, "hash": settings_hash(settings)}
        said = {"strategy": cell.row.strategy, "rounds": cell.rounds, "epochs": cell.rounds, "edges_kept": 0.5}
        cost = {"wall_seconds": 6.0, "peak_mib": 512.0, "device": "cpu", "versions": {"torch": "2"}}
        how = {"jobs": 1, "cache": "own", "revision": REVISION}
        return {**head, **said, **cost, **how, "date": "2026-01-02", **figures}

    return line


@pytest.fixture
def small(silos: Callable[..., tuple[Path, ...]], tmp_path: Path) -> Callable[..., Work]:
    """One round of a small model on two silos; what a test says replaces what is here."""

    def work(**said: Any) -> Work:
        sizes: dict[str, Any] = {"anchor.users": 40, "anchor.items": 30, "anchor.edges": 200}
        usual = Work(
            table="table0",
            root=tmp_path,
            shards=silos(2),
            whole=tmp_path / "whole",
            state=tmp_path / "state",
            strategy="lpsfed",
            method=method_settings(width=4, layers=1, cutoff=6, negatives=4, **sizes),
            rounds=1,
            seed=0,
            groups=False,
            extra=False,
            device="cpu",
        )
        return replace(usual, **said)

    return work
