"""A client that ends at any moment, and starts again with what is on its disk, sends what it would have sent.

A kill is told to the disk alone: at that very moment the client's state directory is copied, and a new service starts
from the copy. What the old one does from then on reaches nobody.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI

import client_service.serving.checkpoint
import client_service.training_checkpoint
from client_service import best_model
from client_service.best_model import BestModel
from client_service.boundary.ledger import Ledger
from client_service.learning.local import LocalTraining
from client_service.settings import ClientSettings
from client_service.tasks import items
from client_service.training_checkpoint import NAME
from client_service.training_run import TrainingRun
from simulation.experiment import Experiment
from simulation.federation import conduct_run
from simulation.run import open_federation
from tests.support.federation import Federation, run_federation
from tests.support.questions import finished, in_phase, is_set, read, uploads
from tests.support.small import AGGREGATOR

if TYPE_CHECKING:
    from conftest import Opened, Until

pytestmark = pytest.mark.anyio
TIMES = {"train_seconds", "evaluate_seconds", "overhead_seconds", "bytes_up", "bytes_down"}  # what no seed fixes
Call = Callable[..., bool]


class Killed(Exception):
    """The process is gone. Nobody catches this: it ends whatever the client does."""


@dataclass
class Death:
    """Of client-1, once: `grave` is its state directory as the kill left it."""

    state: Path
    grave: Path
    happened: threading.Event = field(default_factory=threading.Event)

    def strike(self) -> None:
        shutil.copytree(self.state, self.grave)
        self.happened.set()
        raise Killed


class Mortal(httpx.AsyncBaseTransport):
    """A client's way to the aggregator, on which it dies: before a request arrives, or before its answer does."""

    def __init__(self, app: FastAPI) -> None:
        self._inner = httpx.ASGITransport(app)
        self.death: Death | None = None
        self.path, self.answered = re.compile("never"), False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        chosen = self.death is not None and self.path.fullmatch(f"{request.method} {request.url.path}")
        dying = self.death is not None and chosen and not self.death.happened.is_set()
        if dying and not self.answered:
            self.death.strike()
        if self.death is not None and self.death.happened.is_set():
            raise Killed
        answer = await self._inner.handle_async_request(request)
        if dying and answer.status_code == httpx.codes.NO_CONTENT:
            return answer  # not there yet: it dies of the next one
        if dying:
            self.death.strike()
        return answer


Plan = Callable[[pytest.MonkeyPatch, Mortal, Death], None]


def at_call(place: Any, name: str, mine: Call, *, nth: int = 1, after: bool = False) -> Plan:
    """Die before, or after, the nth of the calls that are meant."""

    def plan(monkeypatch: pytest.MonkeyPatch, line: Mortal, death: Death) -> None:
        real, calls = getattr(place, name), 0

        def mortal(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += (counts := mine(*given))
            if not counts or calls != nth:
                return real(*given, **named)
            if after:
                real(*given, **named)
            death.strike()

        del line
        monkeypatch.setattr(place, name, mortal)

    return plan


def on_the_line(pattern: str, *, answered: bool = False) -> Plan:
    def plan(monkeypatch: pytest.MonkeyPatch, line: Mortal, death: Death) -> None:
        del monkeypatch
        line.death, line.path, line.answered = death, re.compile(pattern), answered

    return plan


def in_an_epoch(number: int, batches: int) -> Plan:
    """Die in the middle of the training of a round."""

    def plan(monkeypatch: pytest.MonkeyPatch, line: Mortal, death: Death) -> None:
        real = LocalTraining._epoch

        def mortal(training: LocalTraining, *given: Any) -> None:
            if (training.shard.name, training.moment.round) == ("client-1", number):
                training.batches = Cut(training.batches, batches, death)
            real(training, *given)

        del line
        monkeypatch.setattr(LocalTraining, "_epoch", mortal)

    return plan


@dataclass
class Cut:
    """Batches that end in a death."""

    whole: Any
    batches: int
    death: Death

    def epoch(self, generator: Any) -> Any:
        for place, batch in enumerate(self.whole.epoch(generator)):
            if place == self.batches:
                self.death.strike()
            yield batch


def in_round(number: int) -> Call:
    """Calls of a training run's verb in that round: `fit` has it in its moment, `apply` in its figures."""

    def mine(part: TrainingRun | BestModel, *given: Any, **_: Any) -> bool:
        numbers = [getattr(one, "round", None) for one in given]
        return part.place.client == "client-1" and number in numbers

    return mine


def on_file(name: str) -> Call:
    return lambda *given: any(isinstance(one, Path) and one.parts[-3:] == ("client-1", "model", name) for one in given)


def in_folder(folder: Path, *_: Any) -> bool:
    return folder.parts[-2:] == ("client-1", "model")


def own(part: TrainingRun, *_: Any) -> bool:
    return part.place.client == "client-1"


PUT, GET = "PUT .*/rounds/{}/clients/client-1/update", "GET .*/rounds/{}/clients/client-1/personalized"
POINTS: dict[str, Plan] = {
    "before it has joined": on_the_line("POST /v1/clients"),
    "after it has joined": on_the_line("POST /v1/clients", answered=True),
    "before the run begins": at_call(TrainingRun, "begin", own),
    "before the first checkpoint": at_call(client_service.training_checkpoint, "settle", on_file(NAME)),
    "when the run has begun": at_call(TrainingRun, "begin", own, after=True),
    "in the first epoch": in_an_epoch(1, 1),
    "in an epoch": in_an_epoch(2, 1),
    "while the anchor is fetched": on_the_line("GET .*/rounds/2/anchor", answered=True),
    "when it has trained": at_call(TrainingRun, "fit", in_round(2), after=True),
    "before the upload": on_the_line(PUT.format(2)),
    "before the first receipt": on_the_line(PUT.format(1), answered=True),
    "before the receipt": on_the_line(PUT.format(2), answered=True),
    "before the last receipt": on_the_line(PUT.format(3), answered=True),
    "while it waits": on_the_line(GET.format(2)),
    "while it waits for the last round": on_the_line(GET.format(3)),
    "while it fetches": on_the_line(GET.format(2), answered=True),
    "before it applies": at_call(TrainingRun, "apply", in_round(2)),
    "while it evaluates": at_call(BestModel, "judge", in_round(2)),
    "before the model is kept": at_call(client_service.serving.checkpoint, "settle", on_file("model.json"), nth=3),
    "before the model's head is kept": at_call(
        client_service.serving.checkpoint, "settle", on_file("model-run-1.2.safetensors"), after=True
    ),
    "before the figures are kept": at_call(best_model, "keep_quality", in_folder, nth=3),
    "when the figures are kept": at_call(best_model, "keep_quality", in_folder, nth=3, after=True),
    "while the checkpoint is written": at_call(client_service.training_checkpoint, "settle", on_file(NAME), nth=3),
    "when the checkpoint is written": at_call(
        client_service.training_checkpoint, "settle", on_file(NAME), nth=3, after=True
    ),
    "when it has applied": at_call(TrainingRun, "apply", in_round(2), after=True),
    "when it has applied the last round": at_call(TrainingRun, "apply", in_round(3), after=True),
    "before the test": at_call(TrainingRun, "finish", own),
    "before the end is kept": at_call(best_model, "keep_quality", in_folder, nth=5),
    "when the end is kept": at_call(best_model, "keep_quality", in_folder, nth=5, after=True),
}


@dataclass(frozen=True)
class Left:
    """What a run leaves that its seed fixes: the digests of all updates, of the parameters, and all figures."""

    updates: list[dict[str, str]]
    shared: dict[str, str]
    figures: dict[str, Any]


@dataclass
class Disturbed:
    """A federation whose client-2 takes part, and the settings with which client-1 starts."""

    federation: Federation
    mortal: ClientSettings

    @property
    def app(self) -> FastAPI:
        return self.federation.app

    @property
    def other(self) -> httpx.AsyncClient:
        return self.federation.silos["client-2"]

    async def left(self, mortal: httpx.AsyncClient) -> Left:
        history, clients = await self.federation.history(), {"client-1": mortal, "client-2": self.other}
        statuses = {name: await read(http, "status") for name, http in clients.items()}
        qualities = {name: await read(http, "quality") for name, http in clients.items()}
        return left(history, statuses, qualities)


def left(history: Any, statuses: Any, qualities: Any) -> Left:
    updates = [{who["client"]: who["digest"] for who in one["participants"]} for one in history["rounds"]]
    return Left(
        updates,
        {name: status["shared_digest"] for name, status in statuses.items()},
        {name: fixed(quality) for name, quality in qualities.items()},
    )


def fixed(quality: dict[str, Any]) -> dict[str, Any]:
    rounds = [{name: value for name, value in one.items() if name not in TIMES} for one in quality["rounds"]]
    return {name: value for name, value in quality.items() if name != "spectrum_seconds"} | {"rounds": rounds}


@pytest.fixture
def described(experiment: Callable[..., Experiment]) -> Callable[..., Experiment]:
    """Two clients and three rounds: one of the warm-up, one with a margin, and a last one."""

    def describe(name: str, strategy: str, **changes: Any) -> Experiment:
        found = replace(experiment(name, strategy=strategy, seed=7), rounds=3)
        return replace(found, method=found.method.model_copy(update={"batch_size": 24, **changes}))

    return describe


BEST_IN_ROUND_2 = (0.1, 0.2, 0.4, 0.3)  # the primary measure on validation items, by round


@pytest.fixture(autouse=True)
def judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which round has the best model is planted: what training finds differs between processors."""
    judge, evaluate, rounds = BestModel.judge, items.on_validation, dict[str, int]()

    def note_round(best: BestModel, costs: Any, **learnt: float) -> None:
        rounds[best.place.client] = costs.round
        judge(best, costs, **learnt)

    def evaluate_as_planned(shard: Any, *given: Any) -> Any:
        found = evaluate(shard, *given)
        return replace(found, values={**found.values, found.primary: BEST_IN_ROUND_2[rounds[shard.name]]})

    monkeypatch.setattr(BestModel, "judge", note_round)
    monkeypatch.setattr(items, "on_validation", evaluate_as_planned)


@pytest.fixture(scope="module")
def remembered() -> dict[str, Left]:
    """Undisturbed runs, each of which is lived once."""
    return {}


@pytest.fixture
def undisturbed(described: Callable[..., Experiment], remembered: dict[str, Left]) -> Callable[..., Any]:
    async def run(strategy: str, **changes: Any) -> Left:
        key = json.dumps([strategy, changes])
        if key not in remembered:
            one = described("undisturbed", strategy, **changes)
            async with open_federation(one) as federation:
                outcome = await conduct_run(federation, one.run_request(), lambda _: None)
            said = outcome.model_dump(mode="json")
            remembered[key] = left(said["history"], said["statuses"], said["qualities"])
        return remembered[key]

    return run


@pytest.fixture
def disturbed(described: Callable[..., Experiment], impatient: None) -> Callable[..., Any]:
    """`async with disturbed("lpsfed") as running`: a run has been started, and client-2 takes part."""
    del impatient

    @asynccontextmanager
    async def run(strategy: str, **changes: Any) -> AsyncIterator[Disturbed]:
        one = described("disturbed", strategy, **changes)
        mortal, other = (one.make_client_settings(shard, aggregator_url=AGGREGATOR) for shard in one.shards)
        async with run_federation(one.make_aggregator_settings(), (mortal, other)) as federation:
            await federation.enter(other)
            await federation.start(**one.run_request().model_dump(mode="json"))
            yield Disturbed(federation, mortal)

    return run


@dataclass
class Killer:
    """Starts client-1, waits until it has died as planned, and says with which settings it starts again."""

    opened: Opened
    until: Until
    monkeypatch: pytest.MonkeyPatch
    deaths: int = 0

    async def kill(self, running: Disturbed, plan: Plan) -> ClientSettings:
        state, line = running.mortal.state_directory, Mortal(running.app)
        self.deaths += 1
        death = Death(state, state.parent / f"after-{self.deaths}" / "client-1")
        with self.monkeypatch.context() as patched:
            plan(patched, line, death)
            with suppress(Killed):  # as a service ends whose agent has ended
                async with self.opened(running.mortal, line):
                    await self.until(is_set(death.happened))
        again = {"state_directory": death.grave, "cache_directory": death.grave / "model"}
        running.mortal = running.mortal.model_copy(update=again)
        return running.mortal


@pytest.fixture
def killer(opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch) -> Killer:
    return Killer(opened, until, monkeypatch)


async def to_the_end(running: Disturbed, opened: Opened, until: Until) -> Left:
    async with opened(running.mortal, httpx.ASGITransport(running.app)) as http:
        await until(finished(running.other, http))
        return await running.left(http)


def updates_of(settings: ClientSettings) -> list[tuple[str, str]]:
    """Rounds and digests of the updates in the ledger, which holds."""
    assert Ledger(settings.state_directory / "ledger.jsonl").verify() > 0
    return [(entry["round"], entry["sha256"]) for entry in uploads(settings)]


@pytest.mark.parametrize("point", POINTS)
async def test_a_client_that_is_killed_anywhere_ends_where_it_would_have_ended(
    undisturbed: Any, disturbed: Any, killer: Killer, opened: Opened, until: Until, point: str
) -> None:
    expected = await undisturbed("lpsfed")
    async with disturbed("lpsfed") as running:
        settings = await killer.kill(running, POINTS[point])
        assert await to_the_end(running, opened, until) == expected
    assert [one["round"] for one in expected.figures["client-1"]["rounds"]] == [0, 1, 2, 3]
    sent = updates_of(settings)
    assert set(sent) == {(str(n), one["client-1"]) for n, one in enumerate(expected.updates, start=1)}
    assert len(sent) == 4 if point == "before the upload" else 3
    left_over = [path.name for path in (settings.state_directory / "model").iterdir()]
    assert not [name for name in left_over if name.endswith(".partial")]
    assert NAME not in left_over or point == "when the end is kept"  # the next run's takes its place


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [("pfedrec", {}), ("fedpub", {}), ("fedavg", {"optimiser": "rmsprop"}), ("local", {"warmup_trains": "tables"})],
)
@pytest.mark.parametrize("point", ["in an epoch", "while it waits", "while the checkpoint is written"])
async def test_so_it_does_with_other_models_and_optimisers(
    undisturbed: Any,
    disturbed: Any,
    killer: Killer,
    opened: Opened,
    until: Until,
    strategy: str,
    changes: dict[str, Any],
    point: str,
) -> None:
    expected = await undisturbed(strategy, **changes)
    async with disturbed(strategy, **changes) as running:
        await killer.kill(running, POINTS[point])
        assert await to_the_end(running, opened, until) == expected


async def test_a_client_that_is_killed_again_and_again_ends_where_it_would_have_ended(
    undisturbed: Any, disturbed: Any, killer: Killer, opened: Opened, until: Until
) -> None:
    points = (
        "in the first epoch",
        "before the first receipt",
        "in an epoch",
        "when it has trained",
        "before the upload",
    )
    expected = await undisturbed("lpsfed")
    async with disturbed("lpsfed") as running:
        for point in (*points, "before the receipt", "before it applies", "before the last receipt"):
            await killer.kill(running, POINTS[point])
        await killer.kill(running, at_call(TrainingRun, "fit", in_round(3), after=True))  # nor is it lived twice
        assert await to_the_end(running, opened, until) == expected


def hold_the_other(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Client-2 does not train in round 2 until this is set."""
    let_go, fit = threading.Event(), TrainingRun.fit

    def fit_when_let(part: TrainingRun, strategy: Any, moment: Any, received: Any) -> Any:
        if (part.place.client, moment.round) == ("client-2", 2):
            assert let_go.wait(30.0)
        return fit(part, strategy, moment, received)

    monkeypatch.setattr(TrainingRun, "fit", fit_when_let)
    return let_go


async def test_one_whose_update_is_there_does_not_send_it_again_and_waits_for_the_others(
    undisturbed: Any, disturbed: Any, killer: Killer, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await undisturbed("lpsfed")
    let_go = hold_the_other(monkeypatch)
    async with disturbed("lpsfed") as running:
        await killer.kill(running, POINTS["before the receipt"])
        async with opened(running.mortal, httpx.ASGITransport(running.app)) as http:
            await until(in_phase(http, "waiting for the round"))
            let_go.set()
            await until(finished(running.other, http))
            assert await running.left(http) == expected
        assert [number for number, _ in updates_of(running.mortal)] == ["1", "2", "3"]


class Broken(httpx.AsyncBaseTransport):
    """A line on which the first few requests of one kind are lost, before they arrive or after."""

    def __init__(self, app: FastAPI, pattern: str, *, answered: bool, losses: int = 3) -> None:
        self._inner, self._pattern = httpx.ASGITransport(app), re.compile(pattern)
        self._answered, self.losses = answered, losses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lost = self.losses > 0 and self._pattern.fullmatch(f"{request.method} {request.url.path}") is not None
        self.losses -= lost
        if lost and not self._answered:
            raise httpx.ConnectError("the line is cut", request=request)
        answer = await self._inner.handle_async_request(request)
        if lost:
            raise httpx.ReadError("the line is cut", request=request)
        return answer


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("pattern", [PUT.format(2), GET.format(2), GET.format(3)])
async def test_nor_does_a_line_that_is_cut_in_a_round_make_a_client_train_twice(
    undisturbed: Any, disturbed: Any, opened: Opened, until: Until, pattern: str, answered: bool
) -> None:
    expected = await undisturbed("lpsfed")
    async with disturbed("lpsfed") as running:
        line = Broken(running.app, pattern, answered=answered)
        async with opened(running.mortal, line) as http:
            await until(finished(running.other, http))
            assert await running.left(http) == expected
        assert line.losses <= 2


@pytest.mark.parametrize("damage", ["lost", "changed"])
async def test_without_its_checkpoint_it_goes_on_from_its_best_model_and_says_so(
    disturbed: Any, killer: Killer, opened: Opened, until: Until, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    async with disturbed("lpsfed") as running:
        settings = await killer.kill(running, POINTS["while it waits"])
        path = settings.state_directory / "model" / NAME
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink() if damage == "lost" else path.write_bytes(content)
        found = await to_the_end(running, opened, until)
    assert [one["round"] for one in found.figures["client-1"]["rounds"]] == [0, 1, 2, 3]
    said = "".join(record.getMessage() for record in caplog.records)
    assert ("training_checkpoint_refused" in said) == (damage == "changed")
    assert "training_lost" in said
    assert not re.search("user-[0-9]|item-[0-9]", said)


async def test_one_that_could_not_keep_its_training_leaves_the_aggregator_the_update_that_it_has(
    undisturbed: Any, disturbed: Any, killer: Killer, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the old process's upload arrives after the new one has asked how the round stands."""
    expected = await undisturbed("lpsfed")
    let_go = hold_the_other(monkeypatch)
    async with disturbed("lpsfed") as running:
        settings = await killer.kill(running, POINTS["before the receipt"])
        (settings.state_directory / "model" / NAME).unlink()
        async with opened(settings, Forgetful(running.app)) as http:

            async def sent_once_more() -> bool:
                waiting = await in_phase(http, "waiting for the round")()
                return waiting and [number for number, _ in updates_of(settings)] == ["1", "2", "2"]

            await until(sent_once_more)
            let_go.set()
            await until(finished(running.other, http))
            found = await running.left(http)
    assert found.updates[:2] == expected.updates[:2] and found.updates[2] != expected.updates[2]
    assert [number for number, _ in updates_of(settings)] == ["1", "2", "2", "3"]


class Forgetful(httpx.AsyncBaseTransport):
    """An aggregator that says of every update that it expects it."""

    def __init__(self, app: FastAPI) -> None:
        self._inner = httpx.ASGITransport(app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        if request.url.path != "/v1/runs/current":
            return answer
        content = (await answer.aread()).replace(b'"received"', b'"expected"', 1)
        content = content.replace(b'"expected":', b'"received":', 1)  # the field of that name stays
        return httpx.Response(answer.status_code, stream=httpx.ByteStream(content))
