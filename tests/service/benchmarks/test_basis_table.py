"""The table of what joining is worth: its plan, its cells, what it says, and finished runs as cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from benchmarks.basis.adopt import FinishedRun, import_run
from benchmarks.basis.run import (
    TARGETS,
    UNTRAINED,
    SharingExperiment,
    best_floor,
    check,
    read_run,
    render,
    verdict,
)
from benchmarks.basis.sub_tables import EASE_TARGETS, ITEM_RECORDS, USER_RECORDS, ratio
from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.data import Cache, rename_items
from benchmarks.harness.document import gather_table, table_section
from benchmarks.harness.measure import Work, measure_cell
from benchmarks.harness.plan import ROOT, Block, Plan, read_plan, table_names
from benchmarks.harness.run import Bench
from benchmarks.harness.store import KnownLines, read_known
from client_service.data.interaction_files import load_shard
from shared.errors import DataError, SettingsError
from shared.method.settings import method_settings, validate_settings
from simulation.partitioning.sources import Cut, cut_shards

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
    joined = [cell for cell in cells if cell.row.strategy == "run.py"]
    assert {cell.method.basis.kind for cell in joined if cell.method} == {"exact", "iterated"}
    noised = {
        (cell.data, cell.block.cut, cell.block.clients, cell.method.basis.epsilon) for cell in joined if cell.method
    }
    assert set(EASE_TARGETS) <= noised


def test_other_methods_have_the_settings_and_rounds_of_the_first_table() -> None:
    first = read_plan("table1")
    theirs = {row.label: row for row in first.rows()} | {"LPSFed, strict": first.methods[-1]}
    own = [row for row in PLAN.methods if row.strategy != "run.py"]
    assert [row.label for row in own] == ["local", "LPSFed, strict", "FedMF", "F2MF", "PFedRec", "FedRAP"]
    for row in own:
        assert (row.strategy, row.method) == (theirs[row.label].strategy, theirs[row.label].method)
        assert row.rounds == first.rounds
    cells = [cell for cell in plan_cells(PLAN, OFFERS) if cell.row in own]
    assert {(cell.data, cell.block.cut, cell.block.clients) for cell in cells} == {
        ("ml-1m", "random", 16),
        ("ml-100k", "random", 16),
    }
    assert {cell.special for cell in cells} == {""}  # other tables may have the same cells


def test_a_block_measures_its_own_rows_and_none_that_is_not_there() -> None:
    labels = [cell.row.label for cell in plan_cells(PLAN, OFFERS) if cell.column == "users, 4 silos: ml-1m"]
    assert labels == ["exact", "iterated, rank 128, 3 rounds"]
    blocks = [{"data": ["x"], "rows": ["no such"]}]
    with pytest.raises(SettingsError, match=r"no such"):
        validate_settings(Plan, {**PLAN.model_dump(), "blocks": blocks})


def test_an_overlap_makes_another_cell_and_none_leaves_the_others_as_they_were() -> None:
    cells = [c for c in plan_cells(PLAN, OFFERS) if (c.data, c.block.cut, c.block.clients) == ("ml-100k", "random", 16)]
    found = {cell.identity() for cell in cells}
    own = {one for one in found if "run.py" in one}
    assert {one for one in own if "overlap" not in one} == {"ml-100k/16/random/0/0/0/run.py/1/basis"}
    assert len(own) == 5 and not any("overlap" in one for one in found - own)


@pytest.mark.parametrize("drawn", ["popular", "random"])
def test_items_outside_the_common_share_have_a_name_of_their_own_in_each_silo(tmp_path: Path, drawn: str) -> None:
    cut = Cut(2, "users")
    paths = cut_shards("synthetic", cut, tmp_path).paths
    before = [load_shard(path) for path in paths]
    rename_items(paths, Block(data=("x",), overlap=0.5, overlap_of=drawn))  # type: ignore[arg-type]
    after = [load_shard(path) for path in paths]
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


def gains(items: list[float], users: list[float]) -> dict[str, Any]:
    nothing = [0, 0.0, 0.0]
    return {
        "items": dict.fromkeys(ITEM_RECORDS, nothing) | {"3 to 9": items},
        "users": dict.fromkeys(USER_RECORDS, nothing) | {"20 to 49": users},
    }


def test_gains_by_records_are_means_over_the_test_records_and_users_of_all_silos() -> None:
    first, second = line()["clients"]
    counted = line(
        clients=[
            first | {"gains": gains([10, 1, 2], [2, 0.5, 0.6])},
            second | {"gains": gains([30, 3, 8], [8, 1.5, 2.4])},
        ]
    )
    shown = render([counted, line()])
    assert "| ml-1m, users, 2, exact | - | .1000 / .2500 (2.500) | - | - | - |" in shown
    assert "| ml-1m, users, 2, exact | - | - | .2000 / .3000 (1.500) | - | - |" in shown
    assert "By records" not in render([line()])


def test_noise_stands_in_a_table_of_its_own_beside_the_row_without_it() -> None:
    sixty_four = line()["clients"] * 32
    floors = line()["extra"]["floors"] | {"EASE": 0.25}
    place: dict[str, Any] = {"cut": "random", "clients": sixty_four}
    noised = [
        line(
            **place,
            label=f"exact, epsilon {epsilon}, no training",
            settings={"basis.kind": "exact", "basis.epsilon": float(epsilon)},
            extra=line()["extra"] | {"floors": floors, "together": together},
        )
        for epsilon, together in ((1, 0.2), (8, 0.3))
    ]
    shown = render([*noised, line(**place, label="exact, no training")])
    eight = "| ml-1m, random, 64 | 8 | .2500 | .2000 | .3000 | 1.200 | 1.15: met | 1.500 | .3000 | 3,000 |"
    one = "| ml-1m, random, 64 | 1 | .2500 | .2000 | .2000 | 0.800 | - | 1.000 | .3000 | 3,000 |"
    assert f"{eight}\n{one}" in shown
    assert "exact, epsilon" not in shown and "Accuracy against epsilon" not in render([line()])


def test_other_methods_stand_beside_alone_together_and_centralised_of_the_same_place() -> None:
    clients = [client | {"bytes_up": 70, "ndcg": 0.1} for client in line()["clients"]]
    other: dict[str, Any] = {"label": "FedMF", "rounds": 5, "settings": {}, "clients": clients}
    method = {key: value for key, value in line(**other).items() if key != "extra"}
    shown = render([line(rounds=1), method])
    place = "| ml-1m, users, 2 |"
    rows = [row for row in shown.splitlines() if row.startswith(place)]
    assert rows == [
        f"{place} alone | - | .2000 | 1.000 | 0 |",
        f"{place} together | basis run + 1 | .3000 | 1.500 | 3,000 |",
        f"{place} centralised | - | .4000 | 2.000 | all data |",
        f"{place} FedMF | 5 | .1000 | 0.500 | 70 |",
    ]
    assert f"{place} FedMF | 5 | .1000 | - | 70 |" in render([method])
    assert check([method]) == []


def test_the_check_finds_a_silo_that_has_sent_no_statistics_and_one_that_lost() -> None:
    assert check([line()]) == []
    silent = [client | {"basis_bytes_up": 8} for client in line()["clients"]]
    assert "got 8 bytes" in check([line(clients=silent)])[0]
    lost = line(extra=line()["extra"] | {"together": 0.1})
    assert "not behind" in check([lost])[0]
    assert check([lost | {"settings": {"basis.epsilon": 1.0}}]) == []


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
    assert any(client["test_users"] for client in figures["clients"])
    require_counted_once(figures["clients"], shards)
    known = KnownLines()
    assert import_run(folder, bench, [cell], known) == cell.name
    line = read_known(bench.results).find_line(cell)
    assert line is not None and line["digests"] == [load_shard(path).digest for path in shards]
    assert (line["clients"], line["extra"]) == (figures["clients"], figures["extra"])
    assert check([line]) == [] and "| synthetic-90x60, users | 3 | exact |" in render([line])
    with pytest.raises(DataError, match="is measured already"):
        import_run(folder, bench, [cell], known)
    refuse_what_differs(folder, bench, cell)


def require_counted_once(clients: list[dict[str, Any]], shards: tuple[Path, ...]) -> None:
    """Each test record and each test user is in one group, and the groups together give the silo's own figures."""
    for client, shard in zip(clients, map(load_shard, shards), strict=True):
        assert sum(count for count, *_ in client["gains"]["items"].values()) == shard.test.nnz
        users, alone, together = map(sum, zip(*client["gains"]["users"].values(), strict=True))
        assert users == client["test_users"]
        if users:
            assert alone / users == pytest.approx(client["bounds"]["start"])
            assert together / users == pytest.approx(client["ndcg"])
        records = np.asarray(shard.train.sum(axis=0)).ravel()[shard.test.indices]
        assert client["gains"]["items"]["3 to 9"][0] == ((records >= 3) & (records <= 9)).sum()
        assert all(0 <= found <= count for count, *both in client["gains"]["items"].values() for found in both)


def refuse_what_differs(folder: Path, bench: Bench, cell: Cell) -> None:
    """Other settings, another cut, other shards, and a run in the open are no such cell."""
    other = replace(cell, method=method_settings(**SMALL, **{"basis.least_pairs": 2}))
    assert FinishedRun(folder).differences(other) == ["settings"]
    assert FinishedRun(folder).differences(replace(cell, rounds=2, seed=1)) == ["rounds", "seed"]
    with pytest.raises(DataError, match="nearest and differs in rounds, seed"):
        import_run(folder, bench, [replace(cell, rounds=2, seed=1)], KnownLines())
    rename_items([folder / "shards" / "client-1"], Block(data=("x",), overlap=0.5))
    with pytest.raises(DataError, match="expected the shards that"):
        import_run(folder, bench, [cell], KnownLines())
    (folder / "members.toml").unlink()
    assert FinishedRun(folder).differences(cell) == ["masks"]


def test_a_run_without_floors_is_no_cell(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"alone": None, "floors": {}}))
    with pytest.raises(DataError, match="with its floors"):
        read_run(tmp_path, ())


def test_the_table_is_all_that_the_document_shows() -> None:
    table = gather_table(PLAN, KnownLines())
    assert len(table.cells) == len(plan_cells(PLAN, OFFERS))
    assert [text for text in table_section(table) if text.startswith("#")] == ["## basis"]
