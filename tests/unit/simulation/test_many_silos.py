"""Steps of a simulation whose cost for each silo does not grow with the number of silos."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from client_service.federation.messages import StatusOut
from shared.errors import SettingsError
from shared.strategies.lpsfed import make_mixing, similarities
from simulation.datasets import synthetic
from simulation.datasets.synthetic import generate_dataset
from simulation.engines import choose_engine
from simulation.engines.ray_engine import RayCluster, RayWorkers
from simulation.experiments.federation import Progress
from simulation.partitioning import partition as partitions
from simulation.partitioning.sources import SYNTHETIC, Cut, cut_shards
from simulation.reports import terminal


def test_the_bars_of_a_thousand_silos_are_drawn_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all silos for each reply of one took a minute a round."""
    drawn, now = [], [0.0]
    names = tuple(f"client-{number:04d}" for number in range(1024))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(terminal, "_rounds_of_all", lambda *_: drawn.append(1) or {names[0]: (1, "waiting")})
    with terminal.run_bars(names, 2, shown=False) as observe:
        for number in range(1024):
            now[0] = number / 1000
            observe(Progress({}, 2, 0.0))
    assert len(drawn) <= 1.024 / terminal.BAR_SECONDS + 2


def test_many_silos_share_a_bar_that_counts_their_phases() -> None:
    statuses = {
        f"client-{n}": StatusOut(
            client=f"client-{n}", phase="waiting", round=1, rounds=2, device="cpu", device_reason=""
        )
        for n in range(30)
    }
    found = terminal._rounds_of_all([*statuses, "client-30"], Progress(statuses, 2, 0.0))
    assert Counter(found.values()) == {(1, "waiting"): 30, (0, "starting"): 1}


def test_generated_data_grow_with_the_silos_and_events_are_divided_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, divide = [], partitions.divide_by_user

    def note(events: Any, owned: Any) -> Any:
        passes.append(len(owned))
        return divide(events, owned)

    monkeypatch.setattr(partitions, "divide_by_user", note)
    found = cut_shards(SYNTHETIC, Cut(150, "random"), tmp_path)
    assert passes == [150, 150]
    users = [client["users"] for client in found.summary["clients"]]
    assert len(found.paths) == 150 and set(users) == {20}


def test_data_generated_in_blocks_are_those_generated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generate_dataset(3, users=300, items=100)
    monkeypatch.setattr(synthetic, "BLOCK", 1000)
    assert generate_dataset(3, users=300, items=100).events.equals(whole.events)


def test_similarities_are_computed_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def count(latest: Any, floor: float = 0.0) -> dict[str, float]:
        computed.append(1)
        return similarities(latest, floor)

    monkeypatch.setattr(import_module("shared.strategies.lpsfed"), "similarities", count)
    mixing, first = make_mixing(0.0), {f"c{n}": {"rho": float(n)} for n in range(100)}
    second = {**first, "c0": {"rho": 99.0}}
    for latest in (first, second):
        assert [mixing.scalars_of(latest, name) for name in latest] == [
            {"rhobar": value} for value in similarities(latest).values()
        ]
    assert len(computed) == 2


class CountingRay:
    """Ray of which all results are there at the first look."""

    exceptions = type("Errors", (), {"RayTaskError": KeyError, "RayActorError": IndexError})

    def __init__(self) -> None:
        self.looks = 0

    def wait(self, pending: list[int], *, num_returns: int = 1, timeout: float) -> tuple[list[int], list[int]]:
        del timeout
        self.looks += 1
        return pending[:num_returns], pending[num_returns:]

    def get(self, reference: int) -> int:
        return reference


def test_results_of_ray_are_looked_for_together() -> None:
    workers = RayWorkers.__new__(RayWorkers)
    workers._ray = CountingRay()
    assert list(workers._gather([*range(1024)])) == [*range(1024)]
    assert workers._ray.looks == 1


def test_a_limit_of_memory_is_refused_with_services() -> None:
    with pytest.raises(SettingsError, match="--silo-memory: expected it with --engine plain or ray"):
        choose_engine("services", RayCluster(), 1 << 30)
