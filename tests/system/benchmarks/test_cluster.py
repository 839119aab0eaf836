"""Cells of a benchmark over a cluster of two nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.data import Cache
from benchmarks.harness.plan import read_plan
from benchmarks.harness.run import Bench, cluster_launch, run_cells, run_child
from benchmarks.harness.store import KnownLines, read_lines
from simulation.engines.ray_engine import RayCluster

OF_A_MACHINE = {"wall_seconds", "peak_mib", "seconds", "date", "jobs", "clients"}


def quick_cells(count: int) -> list[Cell]:
    return [cell for cell in plan_cells(read_plan("table1", quick=True)) if not cell.problem][:count]


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = ({key: value for key, value in line.items() if key not in OF_A_MACHINE} for line in lines)
    return sorted(rows, key=lambda row: str(row["identity"]))


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_cells_over_a_cluster_give_the_lines_of_one_machine_and_are_not_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the environment that `make engines` makes")
    cells = quick_cells(2)
    here = Bench(Cache(tmp_path / "here", None), tmp_path / "here", device="cpu")
    assert run_cells(here, cells, KnownLines(), shown=False) == []
    with cluster_launch(RayCluster(cpus=2), run_child) as (launch, room):
        there = Bench(Cache(tmp_path / "there", None), tmp_path / "there", device="cpu", jobs=room, launch=launch)
        known = KnownLines()
        assert run_cells(there, cells, known, shown=False) == [] and room == 2
        again = Bench(there.cache, there.results, device="cpu", launch=None)
    assert run_cells(again, cells, known, shown=False) == []
    lines = [read_lines(folder / "table1" / "results.jsonl") for folder in (here.results, there.results)]
    assert without_times(lines[0]) == without_times(lines[1]) and len(lines[1]) == 2
