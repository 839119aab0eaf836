"""The session tables: cells, intervals, verdicts, and one small run of each part."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fedga import devices, rows, silos, tables
from benchmarks.fedga.methods import METHODS, build_method, list_rates
from benchmarks.fedga.rows import Row, find_rates, identify_cell, read_rows
from benchmarks.fedga.sets import parse_setting
from benchmarks.fedga.tables import compare_methods, describe_mean, group_cells, judge_sides, largest_rise, rounds_to
from client_service.runtime.device import pin_threads


def cell(method: str, seed: int, hr20: float, **more: object) -> Row:
    return {"part": "devices", "data": "yoochoose1_64", "method": method, "seed": seed, "test": {"hr20": hr20}, **more}


def test_the_later_line_of_a_cell_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results.jsonl")
    for value in (0.1, 0.2):
        rows.store_row(**cell("fedavg", 0, value, set={}))
    rows.store_row(**cell("fedavg", 0, 0.3, set={"local_epochs": 5}))
    assert [row["test"]["hr20"] for row in read_rows()] == [0.2, 0.3]


def test_rates_are_chosen_once_for_all_seeds_and_changes() -> None:
    known = [cell("fedga", 0, 0.1, set={}, model="srgnn", rates={"learning_rate": 0.1})]
    assert find_rates(known, method="fedga", model="srgnn") == {"learning_rate": 0.1}
    assert find_rates(known, method="fedga", model="tagnn") is None
    assert identify_cell(known[0]) != identify_cell(known[0] | {"model": "tagnn"})


def test_a_mean_has_student_s_interval() -> None:
    assert describe_mean([0.25]) == "0.2500"
    assert describe_mean([0.1, 0.2, 0.3]) == "0.2000 ± 0.2484"  # 4.303 * .1 / sqrt(3)


@pytest.mark.parametrize(
    ("ours", "side"),
    [([0.5, 0.51, 0.52], "above"), ([0.3, 0.31, 0.32], "below"), ([0.3, 0.4, 0.6], "no difference seen")],
)
def test_a_difference_is_seen_by_its_whole_interval(ours: list[float], side: str) -> None:
    found = [cell("ours", seed, value) for seed, value in enumerate(ours)]
    found += [cell("theirs", seed, 0.4 + 0.01 * seed) for seed in range(3)]
    assert compare_methods(group_cells(found, "method"), "ours", "theirs", "hr20")[1] == side
    assert compare_methods(group_cells(found[:4], "method"), "ours", "theirs", "hr20")[1] == "not measured"


def test_a_claim_is_judged_by_all_measures() -> None:
    assert judge_sides(["above", "above"], "above") == "holds"
    assert judge_sides(["above", "no difference seen"], "above") == "not seen"
    assert judge_sides(["above", "below"], "above") == "does not hold"
    assert judge_sides(["above", "not measured"], "above") == "not measured"
    assert largest_rise([3.0, 2.0, 2.5, 1.0, 1.1]) == pytest.approx(0.25)
    assert rounds_to({"curve": [{"round": 10, "mrr20": 0.1}, {"round": 20, "mrr20": 0.2}]}, 0.95) == 20


def test_every_method_has_rates_to_choose_from_and_its_own_settings() -> None:
    assert [len(list_rates(7, METHODS[name], "adam")) for name in ("fedavg", "fedga")] == [4, 9]
    assert {rates["server_step.tau"] for rates in list_rates(7, METHODS["fedga"], "sgd")} == {1e-5}
    assert build_method(7, METHODS["fedga"] | {"learning_rate": 0.5})[1].learning_rate == 0.5
    assert parse_setting("width=100") == ("width", 100) and parse_setting("optimiser=sgd") == ("optimiser", "sgd")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data of a chain 0 -> 1 -> ... -> 11 -> 0; rounds and searches are short."""
    pin_threads(1)
    rng, place = np.random.default_rng(0), tmp_path / "yoochoose1_64"
    sessions = [(start + np.arange(4)) % 12 for start in rng.integers(0, 12, 260)]
    place.mkdir()
    (place / "train_sessions.txt").write_text("\n".join(" ".join(map(str, one)) for one in sessions[:220]))
    (place / "test.txt").write_text("\n".join(f"{one[0]} {one[1]}\t{one[2]}" for one in sessions[220:]))
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results.jsonl")
    for name, value in (("EVERY", 1), ("TUNED_ROUNDS", 1), ("SAMPLE", 2)):
        monkeypatch.setattr(devices, name, value)
    return place


def test_devices_and_silos_are_measured_and_written_as_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_rates", lambda *_: [{"learning_rate": 0.05}])
    asked = {"folder": folder, "model": "srgnn", "optimiser": "adam", "seeds": 2, "set": [("width", 8)]}
    for row in devices.run_methods(argparse.Namespace(**asked, rounds=3, methods=["fedavg", "fedyogi"])):
        rows.store_row(**row)
    cut = {"clients": 2, "cut": "random", "rounds": 2, "methods": ["fedavg", "local"]}
    for row in silos.run_methods(argparse.Namespace(**asked, **cut)):
        rows.store_row(**row)
    found = read_rows()
    assert [row["method"] for row in found if row["part"] == "devices"] == ["floors", *["fedavg"] * 2, *["fedyogi"] * 2]
    assert {row["method"] for row in found if row["part"] == "silos"} >= {"fedavg", "local", "successors"}
    stepped = next(row for row in found if row["method"] == "fedyogi")
    assert stepped["curve"][0]["step5"] <= stepped["curve"][0]["step50"] <= stepped["curve"][0]["step95"]
    page = tables.write_page([row if row["part"] == "silos" else {**row, "set": {}} for row in found])
    assert "| fedyogi |" in page and "Yoochoose 1/64, random, 2" in page and "nan" not in page
    json.dumps(found, allow_nan=False)


def test_the_page_has_every_part_of_the_kept_results() -> None:
    parts = ("## Silos", "devices by sgd", "## Server optimisers", "## What the paper says")
    page = tables.write_page(read_rows())
    assert [part for part in parts if part not in page] == []
