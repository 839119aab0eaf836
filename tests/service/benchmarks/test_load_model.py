"""The load model's clients go through whole rounds of a real aggregator, and what they took is told by phase."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.speed.load_model import LoadPhase, Watcher, as_table, describe, measure_load


def test_a_few_clients_go_through_two_rounds(tmp_path: Path) -> None:
    found = asyncio.run(measure_load(clients=3, rounds=2, megabytes=0.05, folder=tmp_path))
    assert [one.name for one in found.phases] == [
        "join",
        *(f"{what} {number}" for number in (1, 2) for what in ("updates", "sum", "answers")),
    ]
    assert found.errors == {}
    assert {name: found.calls[name] for name in ("join", "model", "anchor", "update")} == {
        "join": 3,
        "model": 3,
        "anchor": 6,
        "update": 6,
    }
    assert 0.04e6 < found.update_bytes < 0.06e6
    assert as_table(found).count("\n") == 8 and "errors: none" in describe(found)[-1]


def test_a_phase_is_what_was_seen_between_its_ends() -> None:
    looks = [(0.0, 1.0, 10), (10.0, 4.0, 30), (20.0, 9.0, 20), (30.0, 9.5, 90)]
    phase = Watcher(0, looks).phase("sum", 10.0, 20.0)
    assert (phase.processor, phase.mib) == (5.0, 30)


def test_a_phase_between_two_looks_has_both() -> None:
    watcher = Watcher(0, [(1.0, 10.0, 50), (5.0, 14.0, 90), (9.0, 15.0, 70)])
    assert watcher.phase("short", 2.0, 3.0) == LoadPhase("short", 1.0, 4.0, 90)
    assert watcher.phase("whole", 1.0, 9.0) == LoadPhase("whole", 8.0, 5.0, 90)
    assert watcher.phase("late", 6.0, 10.0) == LoadPhase("late", 4.0, 1.0, 90)
