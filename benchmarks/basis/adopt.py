"""Import of finished simulations as cells of this table.

python -m benchmarks.basis.adopt FOLDER ... [--data DATA]

The folder is that of `lpsfed simulate DATA --method M --clients C --rounds 1 --common-basis K --secure`. It is
imported where all that determines the outcome is as planned: data, cut, number of silos, rounds, seed, settings,
masks, and the pairs in the shards; else the difference is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.basis.run import read_run
from benchmarks.common import data_folder
from benchmarks.harness.cells import Cell, flatten_settings, plan_cells, settings_hash
from benchmarks.harness.command import CACHE
from benchmarks.harness.data import Cache
from benchmarks.harness.measure import THREADS
from benchmarks.harness.plan import ROOT, read_plan, special_functions
from benchmarks.harness.run import Bench, line_head
from benchmarks.harness.store import FILE, KnownLines, Line, append_line, has_settings, read_known
from client_service.data.digests import content_digest
from client_service.data.interaction_files import load_shard
from shared.errors import DataError, FederationError
from simulation.partitioning.sources import Shards, find_shards

TABLE = "basis"


@dataclass(frozen=True)
class FinishedRun:
    """Folder of a finished simulation."""

    folder: Path

    @cached_property
    def report(self) -> dict[str, Any]:
        """Report of the run's figures."""
        return self._read("report.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Settings of the run."""
        return self._read("config.json")

    @cached_property
    def shards(self) -> Shards:
        """Cut of the run itself; raises DataError if it has none."""
        found = find_shards(self.folder / "shards")
        if found is None:
            raise DataError(f"{self.folder}: expected a simulation with shards of its own, got none")
        return found

    def differences(self, cell: Cell) -> list[str]:
        """Lists differences to a cell, except the shards' content."""
        report, config, cut = self.report, self.config, self.shards.summary
        settings = flatten_settings(report["settings"])
        same_settings = has_settings({"settings": settings, "hash": settings_hash(settings)}, cell.outcome_settings())
        facts = {
            "data": cut["data"] == cell.data and cell.block.fewest == 0 and cell.block.overlap == 1,
            "cut": (cut["method"], cut["partition"]) == (cell.block.cut, cell.partition),
            "silos": len(report["clients"]) == len(self.shards.paths) == cell.block.clients,
            "settings": same_settings,
            "rounds": report["rounds"] == cell.rounds,
            "seed": report["seed"] == cell.seed,
            "strategy": (report["strategy"], report["task"]) == ("lpsfed", "items"),
            "threads": config["threads"] == THREADS,
            "privacy": not config["privacy"],
            "masks": (self.folder / "members.toml").exists(),  # only a secure federation has such a file
        }
        return [name for name, same in facts.items() if not same]

    def line(self, cell: Cell, bench: Bench) -> Line:
        """Returns the cell's line; raises DataError if the shards are not the cell's."""
        planned = bench.cache.shards(cell.data, cell.block, cell.partition)
        if pairs_digest(planned.paths) != pairs_digest(self.shards.paths):
            raise DataError(f"{self.folder}: expected the shards that {cell.name} has, got others")
        figures = read_run(self.folder, self.shards.paths)
        path = self.folder / "report.json"
        return {
            **line_head(bench, cell, planned),
            "clients": figures.pop("clients"),
            "extra": figures,
            "adopted": True,
            "device": self.config["device"],
            "cores": os.cpu_count(),
            "wall_seconds": self.report["seconds"]["total"],
            "date": datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat(),
        }

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise DataError(f"{self.folder / name}: expected the file of a finished simulation") from None
        return found


def pairs_digest(shards: Sequence[Path]) -> list[str]:
    """Computes digests of each shard's users, items and pairs.

    Titles, which a cut of this harness lacks, change no figure.
    """
    parts = map(load_shard, shards)
    return [content_digest((part.user_ids, part.item_ids), (part.train, part.valid, part.test)) for part in parts]


def import_run(folder: Path, bench: Bench, cells: Sequence[Cell], known: KnownLines) -> str:
    """Imports a finished simulation and returns its cell's name.

    Raises DataError if it fits no cell, or the cell is measured already.
    """
    run = FinishedRun(folder)
    by_cell = {cell.name: run.differences(cell) for cell in cells}
    fitting = [cell for cell in cells if not by_cell[cell.name]]
    if not fitting:
        nearest = min(by_cell, key=lambda name: len(by_cell[name]))
        words = f"{nearest} is nearest and differs in {', '.join(by_cell[nearest])}"
        raise DataError(f"{folder}: expected a planned cell, got none: {words}")
    cell = fitting[0]
    if known.find_line(cell) is not None:
        raise DataError(f"{folder}: {cell.name} is measured already")
    line = run.line(cell, bench)
    append_line(bench.results / TABLE / FILE, line)
    known.add_line(line)
    return cell.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Imports all folders; returns 1 if one was not imported."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.basis.adopt", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--data", help="folder with a folder for each data set")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for shards")
    given = parser.parse_args(arguments)
    bench = Bench(Cache(given.cache, data_folder(given.data)), ROOT)
    cells, known, refused = plan_cells(read_plan(TABLE), frozenset(special_functions(TABLE))), read_known(ROOT), 0
    for folder in given.folders:
        try:
            print(f"{folder}: {import_run(folder, bench, cells, known)}")
        except FederationError as error:
            refused += 1
            sys.stderr.write(f"{error}\n")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
