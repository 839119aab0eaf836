"""Command line `python -m benchmarks`: tables, the document, data checks, and measurements."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.common import VARIABLE, data_folder
from benchmarks.guard.guard import guard
from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.data import Cache, verify_data
from benchmarks.harness.document import ResultsTable, gather_table, table_section, write_document
from benchmarks.harness.plan import (
    FLOORS,
    ROOT,
    SPECIAL,
    is_own_table,
    read_plan,
    run_own_table,
    special_functions,
    table_names,
)
from benchmarks.harness.run import Bench, Failure, Launch, cluster_launch, run_cells, run_child
from benchmarks.harness.store import FILE, KnownLines, read_known, write_lines
from benchmarks.harness.summary import Column
from client_service.evaluation.metrics import PRIMARY
from shared.errors import FederationError, SettingsError
from simulation.engines import choose_engine
from simulation.engines.ray_engine import RayCluster
from simulation.reports.terminal import ERR

EMPTY_BODY = 64  # bytes: an update without a tensor is a container with nothing in it


def table_complaints(table: ResultsTable, root: Path = ROOT) -> list[str]:
    """Lists all faults of a table's results; empty if it passes."""
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
    """Checks that local training sends nothing and federations send something."""
    for label, samples in column.rows.items():
        for sample in samples:
            sent = [client["bytes_up"] for client in sample.clients if "bytes_up" in client]
            limit = EMPTY_BODY * sample.line["rounds"]
            if sample.line["strategy"] == "local" and any(size > limit for size in sent):
                yield f"{label}: expected nothing but empty containers to be sent, got {max(sent)} bytes"
            if sample.line["strategy"] in ("lpsfed", "fedavg") and not all(size > limit for size in sent):
                yield f"{label}: expected every client to send its update, got {min(sent)} bytes"


def _order_complaints(table: ResultsTable, column: Column) -> Iterator[str]:
    """Checks that the reference exceeds popularity on synthetic data."""
    reference = table.plan.reference
    if {reference, "popularity"} <= column.rows.keys():
        own, popular = (column.row_spread(name, PRIMARY).mean for name in (reference, "popularity"))
        if own <= popular:
            yield f"expected {reference} above popularity, got {own:.4f} against {popular:.4f}"


CACHE = Path("build") / "benchmarks"
LIMIT_SECONDS, QUICK_LIMIT_SECONDS = 6 * 3600.0, 180.0
TABLES = ROOT.parent / "build" / "results"


def make_parser() -> argparse.ArgumentParser:
    """Creates the parser of `python -m benchmarks`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures the paper's tables.")
    parser.add_argument("what", nargs="?", help=f"{', '.join(table_names())}; or report, verify, guard, cold, nodes")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="verify: folder of the public data sets; cold: a data set; nodes: a graph",
    )
    parser.add_argument("--draws", type=int, default=3, help="cold: number of draws of hidden items")
    parser.add_argument("--json", action="store_true", help="cold, nodes: print JSON")
    parser.add_argument("--method", action="append", default=[], help="nodes: method to measure; may be repeated")
    parser.add_argument("--parts", type=int, default=10, help="nodes: number of silos")
    parser.add_argument("--cut", help="nodes: cut of the graph: metis, growth, random or overlapping")
    parser.add_argument("--seeds", type=int, default=3, help="nodes: number of draws of cut and splits")
    parser.add_argument("--first-seed", type=int, default=0, help="nodes: first seed")
    parser.add_argument("--shares", default="20/40/40", help="nodes: percentages of train, validation and test")
    parser.add_argument("--official", action="store_true", help="nodes: the data set's own splits, as one silo")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help="nodes: a setting of the method"
    )
    parser.add_argument("--encoder", default="svd", help="cold: encoder of item features, as in `lpsfed encode`")
    parser.add_argument("--width", type=int, default=64, help="cold: width of item features")
    parser.add_argument("--write", action="store_true", help="guard: commit the figures instead of comparing them")
    parser.add_argument("--all", action="store_true", help="measure every table")
    parser.add_argument("--quick", action="store_true", help="small replacement of the table, checked and not stored")
    parser.add_argument("--data", help=f"folder with one folder per data set (default: {VARIABLE})")
    parser.add_argument("--only", action="append", default=[], metavar="LABEL", help="only this row; may be repeated")
    parser.add_argument("--column", action="append", default=[], help="only this column; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the cells to measure, and measure none")
    parser.add_argument(
        "--limit", type=float, help="time limit of a cell in seconds (default: 6 hours, 3 minutes with --quick)"
    )
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of shards and states")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    jobs = "cells at a time: 1, or 2 with --quick; more than one spoils the times, so that a table of costs takes one"
    parser.add_argument("--jobs", type=int, help=jobs)
    parser.add_argument(
        "--engine", choices=("processes", "ray"), default="processes", help="ray: run cells on a cluster"
    )
    parser.add_argument("--ray-address", default="", help="address of a Ray cluster, or auto (default: start one here)")
    parser.add_argument("--ray-cpus", type=int, default=0, help="CPUs of a Ray cluster on this machine; 0: all")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    0; 1 if a cell or a quick run's check failed; 2 for a wrong command; 130 after an interrupt.
    """
    given = make_parser().parse_args(arguments)
    try:
        return _run_command(given)
    except SettingsError as error:
        _print_line(f"error: {error}")
        return 2
    except FederationError as error:
        _print_line(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        ERR.print("interrupted: measured cells are kept; run the same command to resume")
        return 130


def _run_command(given: argparse.Namespace) -> int:
    if given.what == "report":
        print(f"written: {write_document(TABLES)}")
        return 0
    if given.what == "verify":
        return _print_verification(given.folder)
    if given.what == "guard":
        return guard(write=given.write)
    if given.what == "cold":
        return _run_cold(given)
    if given.what == "nodes":
        return _run_nodes(given)
    if given.all == bool(given.what) or given.what not in (None, *table_names()):
        named = "" if given.what is None else f", got {given.what!r}"
        others = "report, verify, guard, cold, nodes, or --all"
        raise SettingsError(f"benchmark: expected one of {', '.join(table_names())}, {others}{named}")
    jobs = (2 if given.quick else 1) if given.jobs is None else given.jobs
    if jobs < 1:
        raise SettingsError(f"--jobs: expected at least 1, got {jobs}")
    choose_engine("ray" if given.engine == "ray" else "services", RayCluster(given.ray_address, given.ray_cpus))
    if given.engine != "ray" or given.list:
        return _run_tables(given, jobs, None)
    with cluster_launch(RayCluster(given.ray_address, given.ray_cpus), run_child) as (launch, room):
        return _run_tables(given, room if given.jobs is None else jobs, launch)


def _run_cold(given: argparse.Namespace) -> int:
    from benchmarks.cold.run import run_cold

    if given.folder is None or given.draws < 1:
        raise SettingsError(f"cold: expected a data set and at least 1 draw, got {given.folder} and {given.draws}")
    run_cold(given.folder, given.draws, given.encoder, given.width, as_json=given.json)
    return 0


def _run_nodes(given: argparse.Namespace) -> int:
    from benchmarks.nodes.run import NodeBenchmark, read_shares, run_nodes

    if given.folder is None or given.seeds < 1 or given.parts < 1:
        words = "nodes: expected a graph, at least 1 seed and at least 1 part"
        raise SettingsError(f"{words}, got {given.folder}, {given.seeds} and {given.parts}")
    if wrong := [pair for pair in given.set if "=" not in pair]:
        raise SettingsError(f"--set: expected NAME=VALUE, got {wrong[0]!r}")
    changes = dict(pair.split("=", 1) for pair in given.set)
    wanted = NodeBenchmark(
        str(given.folder),
        tuple(given.method or ("gram",)),
        given.parts,
        given.seeds,
        given.first_seed,
        read_shares(given.shares),
        given.cut,
        given.official,
        changes,
        given.data,
    )
    run_nodes(wanted, as_json=given.json)
    return 0


def _run_tables(given: argparse.Namespace, jobs: int, launch: Launch | None) -> int:
    names = table_names() if given.all else (given.what,)
    if not given.quick:
        cache, limit = Cache(given.cache, data_folder(given.data)), given.limit or LIMIT_SECONDS
        bench = Bench(cache, ROOT, device=given.device, jobs=jobs, limit_seconds=limit, launch=launch)
        return max(_run_table(name, given, bench, read_known(ROOT)) for name in names)
    given.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.cache) as place:
        cache = Cache(Path(place) / "cache", data_folder(given.data))
        limit = given.limit or QUICK_LIMIT_SECONDS
        bench = Bench(cache, Path(place), device=given.device, jobs=jobs, limit_seconds=limit, launch=launch)
        known = KnownLines()
        return max(_run_table(name, given, bench, known) for name in names)


def _print_verification(folder: Path | None) -> int:
    if folder is None:
        raise SettingsError("verify: expected the folder with the public data sets")
    files = verify_data(folder)
    for file in files:
        print(f"{file.data} {file.split}: {file.found} ({file.path})")
    return int(any(file.found != "as published" for file in files))


def _run_table(name: str, given: argparse.Namespace, bench: Bench, known: KnownLines) -> int:
    """Runs one table; with --all an unreadable table does not stop the others."""
    try:
        return (
            _run_own_table(name, given, bench) if is_own_table(name) else _run_planned_table(name, given, bench, known)
        )
    except SettingsError as error:
        if not given.all:
            raise
        _print_line(f"{name}: {error}")
        return 1


def _run_own_table(name: str, given: argparse.Namespace, bench: Bench) -> int:
    """Runs a table that its run.py measures, and replaces all its rows."""
    if given.list:
        print(f"{name}: measured by its run.py, whole")
        return 0
    rows = run_own_table(name, quick=given.quick, data=bench.cache.data, out=bench.cache.folder / name)
    today, offers = datetime.now(UTC).date().isoformat(), special_functions(name)
    write_lines(bench.results / name / FILE, [{"date": today, **row} for row in rows])
    print(offers["render"](rows))
    wrong = offers["check"](rows) if "check" in offers else []
    for what in wrong:
        _print_line(f"check failed: {name}: {what}")
    return int(bool(wrong))


def _run_planned_table(name: str, given: argparse.Namespace, bench: Bench, known: KnownLines) -> int:
    plan = read_plan(name, quick=given.quick)
    every = plan_cells(plan, frozenset(special_functions(name)))
    wanted = [cell for cell in every if _is_wanted(cell, given.only, given.column)]
    if not wanted:
        raise SettingsError(f"{name}: expected rows among {sorted({cell.row.label for cell in every})}, got none")
    if given.list:
        return _list_cells(wanted, bench, known)
    if any(cell.timed for cell in wanted):
        if bench.launch is not None:
            raise SettingsError(f"{name}: expected --engine processes, because its seconds are of one machine, got ray")
        bench = replace(bench, jobs=1)
    failures = run_cells(bench, wanted, known, shown=sys.stderr.isatty())
    _print_failures(name, wanted, known, failures)
    if not given.quick:
        return int(bool(failures))
    table = gather_table(plan, known)
    print("\n".join(table_section(table)))
    wrong = table_complaints(table) if len(wanted) == len(every) else []
    for what in wrong:
        _print_line(f"check failed: {what}")
    return int(bool(failures or wrong))


def _is_wanted(cell: Cell, labels: Sequence[str], columns: Sequence[str]) -> bool:
    return (not labels or cell.row.label in labels) and (not columns or cell.column in columns)


def _list_cells(wanted: Sequence[Cell], bench: Bench, known: KnownLines) -> int:
    problems = [cell.problem or bench.cache.data_problem(cell.data) for cell in wanted]
    for cell, problem in zip(wanted, problems, strict=True):
        state = "measured" if known.find_line(cell) else f"cannot be measured: {problem}" if problem else "to do"
        print(f"{cell.table}: {cell.name}: {state}")
    return int(any(problems))


def _print_failures(name: str, wanted: Sequence[Cell], known: KnownLines, failures: Sequence[Failure]) -> None:
    """Prints how many cells are measured, and each reason of failure once."""
    done = sum(known.find_line(cell) is not None for cell in wanted)
    ERR.print(f"{name}: {done} of {len(wanted)} cells measured", highlight=False)
    for (label, reason), count in Counter((failure.cell.row.label, failure.reason) for failure in failures).items():
        _print_line(f"{name}: {label}, {count} cells: {reason}", "yellow")


def _print_line(text: str, colour: str = "red") -> None:
    ERR.print(text, style=colour, markup=False, highlight=False, soft_wrap=True)
