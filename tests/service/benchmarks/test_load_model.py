"""The load model's clients go through whole rounds of a real aggregator, and what they took is told by phase."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.compare_commits.trees import Tree
from benchmarks.speed.load_clients import Way
from benchmarks.speed.load_model import (
    LoadDeployment,
    LoadPhase,
    LoadPlan,
    Watcher,
    as_table,
    describe,
    measure_load,
)
from shared.errors import UnavailableError


@pytest.mark.parametrize("way", ["streams", "polls"])
def test_a_few_clients_go_through_two_rounds(tmp_path: Path, way: Way) -> None:
    load = LoadPlan(clients=5, rounds=2, megabytes=0.05, way=way, generators=2)
    found = asyncio.run(measure_load(load, tmp_path))
    assert [one.name for one in found.phases] == [
        "join",
        *(f"{what} {number}" for number in (1, 2) for what in ("updates", "sum", "answers")),
    ]
    assert found.errors == {}
    assert {name: found.calls[name] for name in ("join", "model", "anchor", "update", "personalized")} == {
        "join": 5,
        "model": 5,
        "anchor": 10,
        "update": 10,
        "personalized": found.calls["personalized"] if way == "polls" else 10,
    }
    assert found.calls.get("stream", 0) == (5 if way == "streams" else 0)
    assert 0.04e6 < found.update_bytes < 0.06e6
    assert found.each(found.sent) > found.update_bytes < found.each(found.received)
    assert 2 <= found.each(found.rows) < 3  # the update, and its arrival
    assert as_table(found).count("\n") == 8 and "errors: none" in describe(found)[3]
    assert found.lost == 0 and min(found.quarters) > 10


def test_the_aggregator_of_other_files_runs(tmp_path: Path) -> None:
    package = tmp_path / "tree" / "aggregator_service"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("print('another version')")
    deployment = LoadDeployment(tree=Tree("another", tmp_path / "tree"))
    with pytest.raises(UnavailableError, match="ended with code 0"):
        asyncio.run(measure_load(LoadPlan(1, 1, 0.05, deployment=deployment), tmp_path))
    assert "another version" in (tmp_path / "aggregator.log").read_text()


def test_a_phase_is_what_was_seen_between_its_ends() -> None:
    looks = [(0.0, 1.0, 10), (10.0, 4.0, 30), (20.0, 9.0, 20), (30.0, 9.5, 90)]
    phase = Watcher(0, looks).phase("sum", 10.0, 20.0)
    assert (phase.processor, phase.mib) == (5.0, 30)


def test_a_phase_between_two_looks_has_both() -> None:
    watcher = Watcher(0, [(1.0, 10.0, 50), (5.0, 14.0, 90), (9.0, 15.0, 70)])
    assert watcher.phase("short", 2.0, 3.0) == LoadPhase("short", 1.0, 4.0, 90)
    assert watcher.phase("whole", 1.0, 9.0) == LoadPhase("whole", 8.0, 5.0, 90)
    assert watcher.phase("late", 6.0, 10.0) == LoadPhase("late", 4.0, 1.0, 90)
