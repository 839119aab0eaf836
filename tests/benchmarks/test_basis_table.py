"""The table of what joining is worth: its plan, its cells, what it says, and finished runs as cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from benchmarks.basis.adopt import Finished, adopt_run
from benchmarks.basis.run import (
    TARGETS,
    UNTRAINED,
    SharingExperiment,
    best_floor,
    check,
    ratio,
    read_run,
    render,
    verdict,
)
from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.data import Cache, rename_items
from benchmarks.harness.document import gather_table, table_section
from benchmarks.harness.measure import Work, measure_cell
from benchmarks.harness.plan import ROOT, Block, Plan, read_plan, table_names
from benchmarks.harness.run import Bench
from benchmarks.harness.store import KnownLines, read_known
from client_service.shard import read_shard
from shared.errors import DataError, SettingsError
from shared.method.settings import method_settings, validate_settings
from simulation.source import Cut, cut_shards

OFFERS = frozenset({"measure", "render", "check"})
PLAN = read_plan("basis")
SMALL: dict[str, Any] = {"width": 4, "cutoff": 6, "basis.kind": "exact", "strategy.train": "false"}


def line(**said: Any) -> dict[str, Any]:
    clients = [
        {"client": "a", "users": 20, "items": 9, "test_users": 20, "ndcg": 0.3, "bounds": {"start": 0.1}},
        {"client": "b", "users": 130, "items": 9, "test_users": 60, "ndcg": 0.3, "bounds": {"start": 0.2}},
    ]
    floors = {"popularity": 0.1, "EASE": None, "ridge": 0.24}
    found = {"alone": 0.2, "together": 0.3, "centralised": 0.4, "floors": floors, "seconds": {"total": 7.0}}
    usual = {
        "data": "ml-1m",
        "cut": "users",
        "label": "exact",
        "settings": {"basis.kind": "exact"},
        "clients": [client | {"bytes_up": 3000, "basis_bytes_up": 2000} for client in clients],
        "extra": found,
    }
    return usual | said


def iterated(rank: int, rounds: int, **said: Any) -> dict[str, Any]:
    settings = {"basis.kind": "iterated", "basis.rank": rank, "basis.rounds": rounds}
    return line(settings=settings, label=f"iterated, rank {rank}, {rounds} rounds", **said)


def test_every_target_is_of_a_planned_cell_and_the_users_cut_comes_first() -> None:
    cells = plan_cells(PLAN, OFFERS)
    places = {(cell.data, cell.block.cut, cell.block.clients, cell.row.label.removesuffix(UNTRAINED)) for cell in cells}
    assert set(TARGETS) <= places
    assert [cell.problem for cell in cells if cell.problem] == []
    assert cells[0].block.cut == "users" and table_names()[0] == "basis"
    assert {cell.method.basis.kind for cell in cells if cell.method} == {"exact", "iterated"}


def test_a_block_measures_its_own_rows_and_none_that_is_not_there() -> None:
    labels = [cell.row.label for cell in plan_cells(PLAN, OFFERS) if cell.column == "users, 4 silos: ml-1m"]
    assert labels == ["exact", "iterated, rank 128, 3 rounds"]
    blocks = [{"data": ["x"], "rows": ["no such"]}]
    with pytest.raises(SettingsError, match=r"no such"):
        validate_settings(Plan, {**PLAN.model_dump(), "blocks": blocks})


def test_an_overlap_makes_another_cell_and_none_leaves_the_others_as_they_were() -> None:
    cells = [c for c in plan_cells(PLAN, OFFERS) if (c.data, c.block.cut, c.block.clients) == ("ml-100k", "random", 16)]
    found = {cell.identity() for cell in cells}
    assert {one for one in found if "overlap" not in one} == {"ml-100k/16/random/0/0/0/run.py/1/basis"}
    assert len(found) == 5


@pytest.mark.parametrize("drawn", ["popular", "random"])
def test_items_outside_the_common_share_have_a_name_of_their_own_in_each_silo(tmp_path: Path, drawn: str) -> None:
    cut = Cut(2, "users")
    paths = cut_shards("synthetic", cut, tmp_path).paths
    before = [read_shard(path) for path in paths]
    rename_items(paths, Block(data=("x",), overlap=0.5, overlap_of=drawn))  # type: ignore[arg-type]
    after = [read_shard(path) for path in paths]
    every = set().union(*(shard.item_ids for shard in before))
    common = set.intersection(*(set(shard.item_ids) for shard in after))
    method = method_settings(**{"basis.kind": "exact"})
    listed = SharingExperiment(paths, tmp_path / "state", method).catalogue.read_text().splitlines()
    assert common <= set(listed) < every and len(listed) <= round(0.5 * len(every))
    assert 0 < len(common) <= round(0.5 * len(every)) and common < every
    for old, new in zip(before, after, strict=True):
        own = {item.removesuffix(f"@{new.name}") for item in new.item_ids}
        assert own <= set(old.item_ids) and new.user_ids == old.user_ids
        assert [getattr(new, split).nnz for split in ("train", "valid", "test")] == [
            getattr(old, split).nnz for split in ("train", "valid", "test")
        ]


def test_the_table_says_the_ratio_and_whether_the_target_is_met() -> None:
    assert ratio(line()) == pytest.approx(1.5) and best_floor(line()) == (0.24, "ridge")
    sixteen = line()["clients"] * 8
    met = line(clients=sixteen)
    assert verdict(met) == "1.15: met" and verdict(line()) == "-"
    missed = line(clients=sixteen, extra=met["extra"] | {"alone": 0.29})
    assert verdict(missed) == "1.15: NOT met"
    assert verdict(met | {"overlap": [0.5, "random"]}) == "-"
    shown = render([met])
    assert "| ml-1m, users | 16 | exact | .1000 | .2400 (ridge) | .2000 | .3000 | 1.500 | 1.15: met | 1.250 |" in shown
    assert "| .4000 | 0.750 | 7 | 3,000 | 2,000 |" in shown
    assert "| ml-1m, users, 16, exact | 3.000 (8) | - (0) | 1.500 (8) |" in shown
    assert "Rank, rounds" not in shown and "Items in common" not in shown


def test_ranks_and_overlaps_have_tables_where_they_were_measured() -> None:
    lines = [iterated(64, 3), iterated(32, 5), iterated(64, 3, overlap=[0.2, "popular"])]
    shown = render(lines)
    assert shown.index("| ml-1m, users, 2 | 32 | 5 | 2,000 |") < shown.index("| ml-1m, users, 2 | 64 | 3 | 2,000 |")
    assert "20 %, popular | iterated, rank 64, 3 rounds" in shown and "100 % | iterated, rank 64, 3 rounds" in shown
    assert "100 % | iterated, rank 32" not in shown


def test_a_ceiling_that_was_left_out_is_a_dash() -> None:
    shown = render([line(extra=line()["extra"] | {"centralised": None})])
    assert "| - | - | 7 | 3,000 | 2,000 |" in shown


def test_the_check_finds_a_silo_that_has_sent_no_statistics_and_one_that_lost() -> None:
    assert check([line()]) == []
    silent = [client | {"basis_bytes_up": 8} for client in line()["clients"]]
    assert "got 8 bytes" in check([line(clients=silent)])[0]
    assert "not behind" in check([line(extra=line()["extra"] | {"together": 0.1})])[0]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(Cache(tmp_path / "cache", None), tmp_path / "results")


@pytest.fixture
def cell() -> Cell:
    """Three silos, and closed forms alone."""
    row = PLAN.methods[0].model_copy(update={"method": SMALL})
    blocks = (Block(data=("synthetic-90x60",), clients=3, cut="users"),)
    return plan_cells(PLAN.model_copy(update={"blocks": blocks, "methods": (row,)}), OFFERS)[0]


def test_a_cell_is_measured_and_the_folder_of_its_simulation_is_the_same_cell(
    small: Callable[..., Work], bench: Bench, cell: Cell, tmp_path: Path
) -> None:
    folder = tmp_path / "finished"
    copytree(bench.cache.shards(cell.data, cell.block, 0).paths[0].parent, folder / "shards")
    (cut := folder / "shards" / "partition.json").write_text(
        json.dumps(json.loads(cut.read_text()) | {"data": cell.data})
    )
    shards = tuple(sorted((folder / "shards").glob("client-*")))
    work = small(table="basis", root=ROOT, strategy="run.py", method=cell.method, shards=shards, state=folder)
    figures = measure_cell(work)
    assert set(figures["extra"]["floors"]) == {"popularity", "low-pass", "ridge", "EASE"}
    for client in figures["clients"]:
        assert client["bytes_up"] > client["basis_bytes_up"] > 0
        assert (client["ndcg"] is None) == (client["test_users"] == 0)
    known = KnownLines()
    assert adopt_run(folder, bench, [cell], known) == cell.name
    line = read_known(bench.results).find_line(cell)
    assert line is not None and line["digests"] == [read_shard(path).digest for path in shards]
    assert (line["clients"], line["extra"]) == (figures["clients"], figures["extra"])
    assert check([line]) == [] and "| synthetic-90x60, users | 3 | exact |" in render([line])
    with pytest.raises(DataError, match="is measured already"):
        adopt_run(folder, bench, [cell], known)
    refuse_what_differs(folder, bench, cell)


def refuse_what_differs(folder: Path, bench: Bench, cell: Cell) -> None:
    """Other settings, another cut, other shards, and a run in the open are no such cell."""
    other = replace(cell, method=method_settings(**SMALL, **{"basis.least_pairs": 2}))
    assert Finished(folder).differences(other) == ["settings"]
    assert Finished(folder).differences(replace(cell, rounds=2, seed=1)) == ["rounds", "seed"]
    with pytest.raises(DataError, match="nearest and differs in rounds, seed"):
        adopt_run(folder, bench, [replace(cell, rounds=2, seed=1)], KnownLines())
    rename_items([folder / "shards" / "client-1"], Block(data=("x",), overlap=0.5))
    with pytest.raises(DataError, match="expected the shards that"):
        adopt_run(folder, bench, [cell], KnownLines())
    (folder / "members.toml").unlink()
    assert Finished(folder).differences(cell) == ["masks"]


def test_a_run_without_floors_is_no_cell(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"alone": None, "floors": {}}))
    with pytest.raises(DataError, match="with its floors"):
        read_run(tmp_path)


def test_the_table_is_all_that_the_document_shows() -> None:
    table = gather_table(PLAN, KnownLines())
    assert len(table.cells) == len(plan_cells(PLAN, OFFERS))
    assert [text for text in table_section(table) if text.startswith("#")] == ["## basis"]
