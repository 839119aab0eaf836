"""Running cells: skipped where known, kept one by one, one failure no other's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import run
from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.child import peak_mib
from benchmarks.harness.data import Cache
from benchmarks.harness.plan import REVISION, Plan, read_plan
from benchmarks.harness.run import Bench, run_cells
from benchmarks.harness.store import KnownLines, Line, read_known, read_lines
from shared.errors import FederationError
from simulation.partitioning.sources import Shards

Answer = Callable[[Cell], Line]


@pytest.fixture
def bench(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> Bench:
    """One that answers at once instead of starting processes."""
    monkeypatch.setattr(Cache, "shards", lambda *_: Shards((), {}))
    monkeypatch.setattr(run, "run_cell", lambda _bench, cell, _shards: answer(cell))
    return Bench(Cache(tmp_path / "cache", None), root, root)


def test_what_is_known_is_not_run_again(bench: Bench, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plan_cells(plan)
    assert run_cells(bench, wanted[:4], KnownLines(), shown=False) == []
    kept = read_known(bench.results)
    assert [kept.find_line(cell) is not None for cell in wanted] == [True] * 4 + [False] * (len(wanted) - 4)
    ran: list[str] = []
    plain = run.run_cell

    def counted(bench: Bench, cell: Cell, shards: Shards) -> Line:
        ran.append(cell.name)
        return plain(bench, cell, shards)

    monkeypatch.setattr(run, "run_cell", counted)
    assert run_cells(bench, wanted, kept, shown=False) == []
    assert sorted(ran) == sorted(cell.name for cell in wanted[4:])
    assert len(read_lines(bench.results / "table0" / "results.jsonl")) == len(wanted)


def test_a_cell_of_other_shards_is_measured_again(bench: Bench, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = plan_cells(plan)[1]
    plain = run.run_cell
    monkeypatch.setattr(run, "run_cell", lambda *given: plain(*given) | {"digests": ["old"]})
    known = KnownLines()
    assert run_cells(bench, [cell], known, shown=False) == []
    path = bench.results / "table0" / "results.jsonl"
    for now, lines in (("old", 1), ("new", 2)):
        monkeypatch.setattr(run, "shard_digests", lambda _, now=now: (now,))
        assert run_cells(bench, [cell], known, shown=False) == []
        assert len(read_lines(path)) == lines


def test_a_line_says_how_it_was_measured(plan: Plan, bench: Bench) -> None:
    head = run.line_head(bench, plan_cells(plan)[1], Shards((), {}))
    assert (head["revision"], head["digests"], head["jobs"], head["cache"]) == (REVISION, [], 1, "shared")
    timed = plan_cells(plan.model_copy(update={"view": "cost"}))[1]
    assert run.line_head(bench, timed, Shards((), {}))["cache"] == "own"


def test_an_interrupt_leaves_what_is_done(bench: Bench, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run.run_cell

    def stopped(bench: Bench, cell: Cell, shards: Shards) -> Line:
        if cell.row.label == "LPSFed":
            raise KeyboardInterrupt
        return plain(bench, cell, shards)

    monkeypatch.setattr(run, "run_cell", stopped)
    wanted = plan_cells(plan)
    with pytest.raises(KeyboardInterrupt):
        run_cells(bench, wanted, KnownLines(), shown=False)
    kept = read_known(bench.results)
    assert kept.find_line(wanted[1]) is not None and kept.find_line(wanted[2]) is None


def test_a_cell_that_fails_is_told_and_the_others_go_on(
    bench: Bench, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run.run_cell

    def failing(bench: Bench, cell: Cell, shards: Shards) -> Line:
        if cell.row.label == "FedMF" and cell.seed == 1:
            raise FederationError("no luck")
        return plain(bench, cell, shards)

    monkeypatch.setattr(run, "run_cell", failing)
    wanted, known = plan_cells(plan), KnownLines()
    failures = run_cells(bench, wanted, known, shown=False)
    assert [(one.cell.row.label, one.cell.seed, one.reason) for one in failures] == [("FedMF", 1, "no luck")]
    assert sum(known.find_line(cell) is None for cell in wanted) == 1


def test_rows_that_differ_in_name_alone_are_measured_once(bench: Bench, root: Path) -> None:
    config = root / "table0" / "config.toml"
    text = config.read_text(encoding="utf-8") + '\n[[methods]]\nlabel = "Again"\nstrategy = "lpsfed"\n'
    config.write_text(text, encoding="utf-8")
    wanted, known = plan_cells(read_plan("table0", root=root)), KnownLines()
    assert run_cells(bench, wanted, known, shown=False) == []
    assert all(known.find_line(cell) for cell in wanted)
    assert len(read_lines(bench.results / "table0" / "results.jsonl")) == len(wanted) - 3  # three seeds of one row


def test_missing_data_is_the_problem_of_its_cells(root: Path, tmp_path: Path) -> None:
    config = root / "table0" / "config.toml"
    config.write_text(config.read_text(encoding="utf-8").replace("synthetic-400x240", "gowalla"), encoding="utf-8")
    wanted = plan_cells(read_plan("table0", root=root))
    failures = run_cells(Bench(Cache(tmp_path, None), root, root), wanted, KnownLines(), shown=False)
    assert len(failures) == len(wanted) and {"gowalla" in one.reason for one in failures} == {True}


def test_a_process_that_ends_badly_gives_its_last_words(tmp_path: Path) -> None:
    work: dict[str, Any] = {"out": str(tmp_path / "out"), "root": "", "shards": [], "whole": "", "state": ""}
    work |= {"method": {"width": -1}}
    with pytest.raises(FederationError, match=r"ended with 1: .*width"):
        run.run_child(work, tmp_path, limit_seconds=120.0)


def test_peak_memory_is_that_of_this_process() -> None:
    before = peak_mib()
    held = bytearray(b"x") * (64 << 20)
    assert peak_mib() >= before > 1.0 and len(held) == 64 << 20
