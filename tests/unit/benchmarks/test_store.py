"""results.jsonl: appended, torn lines forgotten, cells found again by what was measured."""

from __future__ import annotations

import dataclasses
import fcntl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.harness import store
from benchmarks.harness.cells import Cell, plan_cells, settings_hash
from benchmarks.harness.plan import Plan
from benchmarks.harness.store import KnownLines, Line, append_line, read_known, read_lines
from shared.errors import DataError

Answer = Callable[[Cell], Line]


def test_lines_come_back_and_a_torn_last_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "table0" / "results.jsonl"
    append_line(path, {"a": 1})
    append_line(path, {"a": 2})
    with path.open("a") as file:
        file.write('{"a": 3, "b')  # the machine went down here
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    append_line(path, {"a": 4})
    assert read_lines(path) == [{"a": 1}, {"a": 2}, {"a": 4}]
    assert path.read_bytes().endswith(b"\n")


def test_many_at_once_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"number": -1}\n{"torn')
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: append_line(path, {"number": number, "long": "x" * 20_000}), range(40)))
    assert sorted(line["number"] for line in read_lines(path)) == list(range(-1, 40))


def test_a_line_waits_for_whoever_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ThreadPoolExecutor(1) as pool, path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b'{"a": ')
        other.flush()
        waiting = pool.submit(append_line, path, {"a": 2})
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        other.write(b"1}\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_UN)
        waiting.result()
    assert read_lines(path) == [{"a": 1}, {"a": 2}]


def test_a_whole_line_that_is_no_json_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"a": 1}\nnonsense\n')
    with pytest.raises(DataError, match="line 2"):
        read_lines(path)


def test_no_file_is_no_results(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none.jsonl") == []


def test_a_cell_is_known_by_what_was_measured_and_not_by_its_label(plan: Plan, answer: Answer) -> None:
    cell = next(cell for cell in plan_cells(plan) if cell.row.label == "LPSFed")
    known = KnownLines([answer(cell)])
    assert known.find_line(dataclasses.replace(cell, row=cell.row.model_copy(update={"label": "Renamed"}))) is not None
    assert known.find_line(dataclasses.replace(cell, table="another")) is not None
    assert cell.method is not None
    for other in (
        {"seed": 7},
        {"partition": 1},
        {"rounds": 4},
        {"data": "ml-1m"},
        {"block": cell.block.model_copy(update={"fewest": 8})},
        {"block": cell.block.model_copy(update={"clients": 10})},
        {"method": cell.method.model_copy(update={"margin_strength": 0.7})},
        {"groups": True},
    ):
        assert known.find_line(dataclasses.replace(cell, **other)) is None, other


def test_a_setting_younger_than_the_line_may_only_be_what_all_were_before(plan: Plan, answer: Answer) -> None:
    cell = next(cell for cell in plan_cells(plan) if cell.row.label == "LPSFed")
    line = answer(cell)
    for name, neutral in (("decay", True), ("aggregate", True), ("krum_kept", True), ("width", False)):
        older = {key: setting for key, setting in line["settings"].items() if key != name}
        known = KnownLines([{**line, "settings": older, "hash": settings_hash(older)}])
        assert (known.find_line(cell) is not None) == neutral, name


def test_a_floor_of_0_that_a_line_names_is_what_nobody_sets_in_the_open(plan: Plan, answer: Answer) -> None:
    cell = next(one for one in plan_cells(plan) if one.row.label == "LPSFed")
    line = answer(cell)
    assert "similarity_floor" not in line["settings"]
    for floor, masks, known in ((0.0, False, True), (0.0, True, False), (1.0, False, False)):
        named = line["settings"] | {"similarity_floor": floor}
        kept = KnownLines([{**line, "settings": named, "hash": settings_hash(named), "masks": masks}])
        assert (kept.find_line(cell) is not None) == known


def test_another_revision_or_other_shards_are_measured_again(
    plan: Plan, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = next(cell for cell in plan_cells(plan) if cell.row.label == "LPSFed")
    line = answer(cell)
    assert KnownLines([line]).find_line(cell) is not None
    assert KnownLines([{**line, "revision": line["revision"] + 1}]).find_line(cell) is None
    assert KnownLines([{key: value for key, value in line.items() if key != "revision"}]).find_line(cell) is None
    cut = KnownLines([{**line, "digests": ["a", "b"]}])
    assert cut.find_line(cell) is not None and cut.find_line(cell, lambda: ("a", "b")) is not None
    assert cut.find_line(cell, lambda: ("a", "c")) is None
    assert (
        KnownLines([line]).find_line(cell, lambda: ("a", "c")) is not None
    )  # an older line says nothing of its shards
    monkeypatch.setattr(store, "REVISION", line["revision"] + 1)
    assert KnownLines([line]).find_line(cell) is None


def test_a_cell_that_is_timed_takes_lines_of_runs_made_alone(plan: Plan, answer: Answer) -> None:
    cell = next(cell for cell in plan_cells(plan.model_copy(update={"view": "cost"})) if cell.row.label == "LPSFed")
    line = answer(cell)
    assert cell.timed and KnownLines([line]).find_line(cell) is not None
    for change in ({"jobs": 2}, {"cache": "shared"}, {"jobs": None}):
        assert KnownLines([line | change]).find_line(cell) is None, change
        assert KnownLines([line | change]).find_line(dataclasses.replace(cell, timed=False)) is not None, change


def test_results_of_every_table_are_known_and_those_of_a_run_py_are_not_ours(
    plan: Plan, answer: Answer, root: Path
) -> None:
    cell = plan_cells(plan)[0]
    append_line(root / "table5" / "results.jsonl", answer(cell))
    append_line(root / "theorems" / "results.jsonl", {"part": "gap"})
    assert read_known(root).find_line(cell) is not None
