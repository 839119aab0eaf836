"""The table of sparse data: how sets are read and cut down, what is measured, and what it is held against."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.plan import run_own_table
from benchmarks.sparse.federation import measure_gains, ratio_interval
from benchmarks.sparse.run import TOGETHER, SmallCut, check, read_sessions, read_source, render, summarise
from shared.errors import DataError
from simulation.experiments.floors import FLOORS, START

DRAWS = {"resamples": 200, "seed": 0}


def write_lines(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_a_session_is_a_user_with_its_different_items(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.txt.gz", "7 7 8 7\n1 1\n3 4 5\n")
    assert read_sessions(path, 2).rows() == [(f"000000{row}", item) for row, item in zip("00222", "78345", strict=True)]


def test_the_last_sessions_are_taken_and_other_users_are_drawn_by_seed(tmp_path: Path) -> None:
    lines = "".join(f"{row} {row + 1} {row + 2}\n" for row in range(40))
    write_lines(tmp_path / "s.txt.gz", lines)
    source = {"data": "clicks", "files": ["s.txt.gz"], "kind": "sessions", "users": 5}
    assert read_source(source, tmp_path, 0).events["user"].unique().sort().to_list() == [
        f"{n:07d}" for n in range(35, 40)
    ]
    write_lines(tmp_path / "f.txt.gz", "".join(f"{row % 8}\t{row}\t1.5e+05\n" for row in range(40)))
    drawn = {"data": "weights", "files": ["f.txt.gz"], "kind": "fields", "users": 5}
    users = [set(read_source(drawn, tmp_path, seed).events["user"]) for seed in (0, 0, 1)]
    assert users[0] == users[1] != users[2] and [*map(len, users)] == [5] * 3


def test_thin_items_are_removed_and_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "s.txt.gz", "1 2 3 4\n1 2 3 5\n1 2 3 6\n")
    source = {"data": "clicks", "files": ["s.txt.gz"], "kind": "sessions", "fewest": 3}
    assert sorted(read_source(source, tmp_path, 0).events["item"].unique()) == ["1", "2", "3"]
    with pytest.raises(DataError, match="expected one of pairs, fields, sessions, got 'graph'"):
        read_source({**source, "kind": "graph"}, tmp_path, 0)


def silo(start: list[float], **floors: list[float]) -> dict[str, dict[str, np.ndarray]]:
    values = {START: start, TOGETHER: start, **{name: floors.get(name, [0.0] * len(start)) for name in FLOORS}}
    return {name: {"recall": np.array(of), "ndcg": np.array(of)} for name, of in values.items()}


def test_the_best_floor_is_that_of_the_user_mean_and_silos_without_test_users_do_not_count() -> None:
    first = silo([0.4, 0.4, 0.4], ease=[0.3, 0.3, 0.3], popularity=[0.1, 0.1, 0.1])
    found = summarise([first, silo([0.2], ease=[0.2], popularity=[0.4]), silo([])], DRAWS)
    assert found["best"] == "ease" and found["test_users"] == 4
    assert found["user_mean"]["ease"]["ndcg"] == pytest.approx(0.275)
    assert found["client_mean"]["ease"]["ndcg"] == pytest.approx(0.25)
    assert found["ratio"]["ndcg"][0] == pytest.approx(0.35 / 0.275)


def test_a_floor_that_is_missing_in_one_silo_is_missing() -> None:
    without = {name: values for name, values in silo([0.5], ease=[0.9]).items() if name != "ease"}
    found = summarise([silo([0.5], ease=[0.9], ridge=[0.4]), without], DRAWS)
    assert found["best"] == "ridge" and "ease" not in found["user_mean"]


def test_the_interval_of_a_ratio_holds_it_and_has_no_width_where_users_do_not_differ() -> None:
    rng = np.random.default_rng(0)
    own, other = rng.random(300), rng.random(300)
    ratio, low, high = ratio_interval(own, other, 500, 0)
    assert low < ratio < high and ratio == pytest.approx(own.mean() / other.mean())
    assert ratio_interval(2 * other, other, 500, 0) == pytest.approx([2.0, 2.0, 2.0])


def test_the_worst_silos_are_told_beside_what_chance_alone_makes_of_them() -> None:
    """Forty silos of which one loses: half of its quality, with so many users that chance cannot make that."""
    rng = np.random.default_rng(0)
    alone = [rng.random(200) for _ in range(40)]
    same = [rng.permutation(one) for one in alone]
    found = measure_gains([*same[:39], alone[39] / 2], alone, 200, 0)
    assert found.counted == 40 and found.wholly == 1 and found.below >= 1
    assert found.worst < 0.8 < found.by_chance < 1.0
    few = [one[:4] for one in alone]
    chance = measure_gains([one[:4] for one in same], few, 200, 0)
    assert chance.worst < 0.8 and abs(chance.worst - chance.by_chance) < 0.2
    empty = measure_gains([np.zeros(5), np.ones(5)], [np.zeros(5), np.ones(5)], 50, 0)
    assert (empty.counted, empty.below, empty.wholly) == (1, 0, 0)
    one_hit = np.array([1.0, 0.0, 0.0])
    lost = measure_gains([np.zeros(3)], [one_hit], 200, 0)
    assert (lost.below, lost.wholly) == (1, 0), "one lost hit of three users may be chance"


def test_a_cell_is_kept_under_another_name_where_its_source_differs() -> None:
    one, other = (SmallCut({"data": "a", "fewest": fewest}, "users", 4) for fewest in (2, 3))
    assert one.file_name(DRAWS) != other.file_name(DRAWS)
    assert one.file_name(DRAWS) != one.file_name({**DRAWS, "seed": 1})


def test_the_quick_table_is_measured_rendered_and_holds(tmp_path: Path) -> None:
    (row,) = run_own_table("sparse", quick=True, data=None, out=tmp_path)
    assert row["ratio"]["ndcg"][0] > 0.95 and check([row]) == []
    line = render([row, {**row, "problem": "expected fewer clients"}]).splitlines()
    assert any(text.startswith("| synthetic |") for text in line) and line[-1].endswith("expected fewer clients")
    assert row["gains"]["counted"] == 4
    harmed = {**row, "gains": {**row["gains"], "ratio": [0.9, 0.8, 0.94]}}
    expected = "synthetic, users, 4 silos: expected the sums to do no harm, got 0.900 of the start, at most 0.940"
    assert check([harmed]) == [expected]
    behind = {**row, "ratio": {"ndcg": [0.9, 0.8, 0.94]}}
    said = f"synthetic, users, 4 silos: expected the start not behind {row['best']}, got 0.900 of it, at most 0.940"
    assert check([behind]) == [said]
    unproven = {**row, "ratio": {"ndcg": [0.9, 0.8, 1.01]}}
    assert check([unproven]) == []
    assert "3 cells: not behind in 1, ahead by the whole interval in 1, behind by it in 1" in render(
        [
            {**row, "ratio": {**row["ratio"], "ndcg": ends}}
            for ends in ([1.1, 1.02, 1.2], [0.9, 0.8, 1.01], [0.9, 0.8, 0.94])
        ]
    )
