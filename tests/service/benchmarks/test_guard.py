"""The guard fails where something takes twice as long as committed, says what, and lets pass what varies a little."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from benchmarks.guard import guard, measuring, rounds, serving
from benchmarks.guard.measuring import Figure, Work, measure_part
from benchmarks.guard.silo import GeneratedSilo, make_silo
from client_service.runtime.device import pin_threads
from client_service.training.item_trainer import ItemTrainer
from shared.errors import FederationError, SettingsError
from shared.method.settings import MethodSettings
from shared.protocol.signing import requests

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def silo(tmp_path_factory: pytest.TempPathFactory) -> GeneratedSilo:
    pin_threads(1)
    return make_silo(tmp_path_factory.mktemp("silo"), users=300, items=200)


def figure(name: str, ratio: float) -> Figure:
    return Figure(name, ratio, "a thing", f"{ratio} ms")


def test_what_is_within_its_bound_passes_and_what_is_twice_as_much_is_told_by_name_expected_and_got() -> None:
    committed = {"quick": 2.0, "slow": 10.0}
    assert guard.complaints([figure("quick", 3.3), figure("slow", 10.0)], committed) == []
    [told] = guard.complaints([figure("quick", 2.0), figure("slow", 20.0)], committed)
    assert told == (
        "slow: expected at most 17 times a thing (10 is committed), got 20, 2.00 times as much as committed"
    )


def test_a_figure_is_missing_neither_here_nor_there() -> None:
    told = guard.complaints([figure("new", 1.0)], {"old": 1.0})
    assert [one.partition(":")[0] for one in told] == ["new", "old"]


def test_what_is_beyond_its_bound_is_measured_again_and_the_least_counts() -> None:
    drawn = iter([5.0, 4.0, 1.5, 9.0])
    [found] = guard.measure_until_within(lambda: [figure("one", next(drawn))], {"one": 1.0})
    assert found.ratio == 1.5 and next(drawn) == 9.0
    drawn = iter([5.0, 4.0, 4.5, 9.0])
    [found] = guard.measure_until_within(lambda: [figure("one", next(drawn))], {"one": 1.0})
    assert found.ratio == 4.0 and next(drawn) == 9.0


def test_every_figure_is_committed_and_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert len(guard.read_committed()) >= 10 and min(guard.read_committed().values()) > 0
    with pytest.raises(SettingsError, match="guard --write"):
        guard.read_committed(tmp_path / "none.json")


def test_the_exit_code_is_1_beyond_a_bound_and_what_is_written_is_within(
    silo: GeneratedSilo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios = {"one": 1.0}

    def measured(work: Callable[..., Any], *_: Any) -> Any:
        return silo if work is make_silo else [figure(name, ratio) for name, ratio in ratios.items()]

    monkeypatch.setattr(guard, "_run_in_child", measured)
    monkeypatch.setattr(guard, "COMMITTED", tmp_path / "committed.json")
    assert guard.guard(write=True) == 0 and json.loads((tmp_path / "committed.json").read_text()) == ratios
    monkeypatch.setattr(guard, "read_committed", lambda: {"one": 1.0})
    assert guard.guard(write=False) == 0
    ratios["one"] = 2.0
    assert guard.guard(write=False) == 1
    assert "guard: one: expected at most 1.7 times a thing" in capsys.readouterr().out


class CountedWork:
    """A clock that tells how often a unit of work has been done: tests must not depend on how fast a machine is."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done = 0
        ask = serving.ask

        async def counted_ask(*args: Any) -> bytes:
            self.done += 1
            return await ask(*args)

        patch.setattr(serving, "ask", counted_ask)
        patch.setattr(rounds, "run_round_once", self._counted(rounds.run_round_once))
        patch.setattr(ItemTrainer, "_epoch", self._counted(ItemTrainer._epoch))
        patch.setattr(measuring, "processor_seconds", self.seconds)

    async def seconds(self, work: Work) -> float:
        """One for each unit; a calibration that does none of them counts as one."""
        before = self.done
        await work()
        return max(self.done - before, 1)

    def _counted(self, once: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: Any) -> None:
            self.done += 1
            once(*args)

        return counted


def hold_twice(patch: pytest.MonkeyPatch) -> None:
    once = rounds.run_round_once

    def twice(archive: Any, name: str, *args: Any) -> None:
        once(archive, name, *args)
        once(archive, f"{name}0000", *args)

    patch.setattr(rounds, "run_round_once", twice)


def train_twice(patch: pytest.MonkeyPatch) -> None:
    once = ItemTrainer._epoch

    def twice(training: ItemTrainer, *args: Any) -> None:
        once(training, *args)
        once(training, *args)

    patch.setattr(ItemTrainer, "_epoch", twice)


def answer_twice(patch: pytest.MonkeyPatch) -> None:
    once = serving.ask

    async def twice(app: FastAPI, question: serving.GuardRequest) -> bytes:
        await once(app, question)
        return await once(app, question) if app.title == "LPSFed" else b""

    patch.setattr(serving, "ask", twice)


@pytest.mark.parametrize(
    ("name", "plant", "slower"),
    [
        ("round", hold_twice, {"round of 4 clients"}),
        ("epoch", train_twice, {"1000 pairs of an epoch"}),
        ("serving", answer_twice, {"known user", "basket", "batch of 100 users"}),
    ],
)
def test_what_is_done_twice_is_beyond_its_bound(
    silo: GeneratedSilo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, plant: Plant, slower: set[str]
) -> None:
    monkeypatch.setattr(rounds, "LARGE", MethodSettings(width=16, layers=2))
    monkeypatch.setattr(serving, "REPETITIONS", 1)
    monkeypatch.setattr(measuring, "CALIBRATIONS", 1)
    CountedWork(monkeypatch)
    [part] = [one for one in guard.PARTS if one.name == name]
    before = asyncio.run(measure_part(part, silo, tmp_path / "before"))
    again = asyncio.run(measure_part(part, silo, tmp_path / "again"))
    plant(monkeypatch)
    after = asyncio.run(measure_part(part, silo, tmp_path / "after"))
    assert beyond(again, before) == set()
    assert beyond(after, before) == slower


def test_the_calls_of_a_request_are_counted_and_twice_as_many_of_a_poll_are_beyond_the_bound(
    silo: GeneratedSilo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "COUNTED", 12)
    [part] = [one for one in guard.PARTS if one.name == "requests"]
    names = [f"calls of a request: {kind}" for kind in ("join", "poll", "model", "anchor", "upload", "answer")]
    committed = {name: ratio for name, ratio in guard.read_committed().items() if name in names}
    found = asyncio.run(measure_part(part, silo, tmp_path))
    assert [one.name for one in found] == names and guard.complaints(found, committed) == []
    once = requests.is_valid_claim
    monkeypatch.setattr(requests, "is_valid_claim", lambda *of: all(once(*of) for _ in range(80)))
    complaints = guard.complaints(asyncio.run(measure_part(part, silo, tmp_path)), committed)
    [told] = [one for one in complaints if one.startswith("calls of a request: poll: expected at most")]
    assert "1,000 calls" in told


def beyond(found: Sequence[Figure], before: Sequence[Figure]) -> set[str]:
    """Names of the times that are; memory is told in a process of its own alone."""
    told = guard.complaints(found, {one.name: one.ratio for one in before})
    return {name for one in told if not (name := one.partition(":")[0]).startswith("memory")}


def test_an_answer_that_is_none_ends_the_guard(silo: GeneratedSilo) -> None:
    async def ask() -> None:
        async with serving.served_client(silo) as app:
            await serving.ask(app, serving.GuardRequest("GET", "/v1/items/nothing/similar"))

    with pytest.raises(FederationError, match="expected status 200 of /v1/items/nothing/similar, got 404"):
        asyncio.run(ask())
