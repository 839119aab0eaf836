"""A client that ends at any moment, and starts again with what is on its disk, sends what it would have sent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.boundary.ledger import Ledger
from client_service.federation import best_model
from client_service.federation.best_model import BestModel
from client_service.federation.checkpoint import NAME
from client_service.federation.training_run import TrainingRun
from client_service.settings import ClientSettings
from client_service.tasks import items
from client_service.training.item_trainer import ItemTrainer
from shared import files
from simulation.experiments.experiment import Experiment
from tests.support.federation import Federation, run_client, run_federation
from tests.support.given import Hold
from tests.support.mortal import Killer, Mortal, Plan, on_the_line
from tests.support.questions import finished, in_phase, read, uploads, wait_until
from tests.support.small import AGGREGATOR

pytestmark = pytest.mark.anyio
TIMES = {"train_seconds", "evaluate_seconds", "overhead_seconds", "bytes_up", "bytes_down"}  # what no seed fixes
Call = Callable[..., bool]


def at_call(place: Any, name: str, mine: Call, *, nth: int = 1, after: bool = False) -> Plan:
    """Die before, or after, the nth of the calls that are meant."""

    def plan(monkeypatch: pytest.MonkeyPatch, line: Mortal) -> None:
        real, calls = getattr(place, name), 0

        def mortal(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += (counts := mine(*given))
            if not counts or calls != nth:
                return real(*given, **named)
            if after:
                real(*given, **named)
            line.strike()

        monkeypatch.setattr(place, name, mortal)

    return plan


def in_an_epoch(number: int, batches: int) -> Plan:
    """Die in the middle of the training of a round."""

    def plan(monkeypatch: pytest.MonkeyPatch, line: Mortal) -> None:
        real = ItemTrainer._epoch

        def mortal(training: ItemTrainer, *given: Any) -> None:
            if (training.shard.name, training.context.round) == ("client-1", number):
                training.batches = Cut(training.batches, batches, line)
            real(training, *given)

        monkeypatch.setattr(ItemTrainer, "_epoch", mortal)

    return plan


@dataclass
class Cut:
    """Batches that end in a death."""

    whole: Any
    batches: int
    line: Mortal

    def epoch(self, generator: Any) -> Any:
        for place, batch in enumerate(self.whole.epoch(generator)):
            if place == self.batches:
                self.line.strike()
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
    "before the first checkpoint": at_call(files, "put_in_place", on_file(NAME)),
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
    "before the model is kept": at_call(files, "put_in_place", on_file("model.json"), nth=3),
    "before the model's head is kept": at_call(files, "put_in_place", on_file("model-run-1.2.safetensors"), after=True),
    "before the figures are kept": at_call(best_model, "save_quality", in_folder, nth=3),
    "when the figures are kept": at_call(best_model, "save_quality", in_folder, nth=3, after=True),
    "while the checkpoint is written": at_call(files, "put_in_place", on_file(NAME), nth=3),
    "when the checkpoint is written": at_call(files, "put_in_place", on_file(NAME), nth=3, after=True),
    "when it has applied": at_call(TrainingRun, "apply", in_round(2), after=True),
    "when it has applied the last round": at_call(TrainingRun, "apply", in_round(3), after=True),
    "before the test": at_call(TrainingRun, "finish", own),
    "before the end is kept": at_call(best_model, "save_quality", in_folder, nth=5),
    "when the end is kept": at_call(best_model, "save_quality", in_folder, nth=5, after=True),
}


AGAIN_AND_AGAIN = (
    "in the first epoch",
    "before the first receipt",
    "in an epoch",
    "when it has trained",
    "before the upload",
    "before the receipt",
    "before it applies",
    "before the last receipt",
)


@dataclass(frozen=True)
class Left:
    """What a run leaves that its seed fixes: the digests of all updates, of the parameters, and all figures."""

    updates: list[dict[str, str]]
    shared: dict[str, str]
    figures: dict[str, Any]


def fixed(quality: dict[str, Any]) -> dict[str, Any]:
    rounds = [{name: value for name, value in one.items() if name not in TIMES} for one in quality["rounds"]]
    return {name: value for name, value in quality.items() if name != "spectrum_seconds"} | {"rounds": rounds}


@dataclass
class Disturbed:
    """A federation whose client-2 takes part, and the settings with which client-1 starts."""

    federation: Federation
    mortal: ClientSettings
    killer: Killer

    async def kill(self, plan: Plan) -> None:
        self.mortal = await self.killer.kill(self.federation, self.mortal, plan)

    @asynccontextmanager
    async def back(self, line: httpx.AsyncBaseTransport | None = None) -> AsyncIterator[httpx.AsyncClient]:
        """Client-1, for the first time or again."""
        line = line or self.federation.line()
        async with run_client(self.mortal, self.federation.settings.registry, line) as http:
            yield http

    async def left(self, mortal: httpx.AsyncClient) -> Left:
        """What the run leaves once both have ended it."""
        clients = {"client-1": mortal, "client-2": self.federation.silos["client-2"]}
        await wait_until(finished(*clients.values()))
        history = await self.federation.history()
        return Left(
            [{who["client"]: who["digest"] for who in one["participants"]} for one in history["rounds"]],
            {name: (await read(http, "status"))["shared_digest"] for name, http in clients.items()},
            {name: fixed(await read(http, "quality")) for name, http in clients.items()},
        )

    async def to_the_end(self) -> Left:
        async with self.back() as http:
            return await self.left(http)


BEST_IN_ROUND_2 = (0.1, 0.2, 0.4, 0.3)  # the primary measure on validation items, by round


@pytest.fixture(autouse=True)
def judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which round has the best model is planted: what training finds differs between processors."""
    judge, evaluate, rounds = BestModel.judge, items.measure_validation, dict[str, int]()

    def note_round(best: BestModel, costs: Any, **learnt: float) -> None:
        rounds[best.place.client] = costs.round
        judge(best, costs, **learnt)

    def evaluate_as_planned(shard: Any, *given: Any) -> Any:
        found = evaluate(shard, *given)
        return replace(found, values={**found.values, found.primary: BEST_IN_ROUND_2[rounds[shard.name]]})

    monkeypatch.setattr(BestModel, "judge", note_round)
    monkeypatch.setattr(items, "measure_validation", evaluate_as_planned)


@pytest.fixture
def disturbed(
    experiment: Callable[..., Experiment], impatient: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """`async with disturbed("lpsfed") as running`: a run has been started, and client-2 takes part.

    Three rounds: one of the warm-up, one with a margin, and a last one.
    """
    del impatient

    @asynccontextmanager
    async def run(strategy: str, name: str = "disturbed", **changes: Any) -> AsyncIterator[Disturbed]:
        one = replace(experiment(name, strategy=strategy, seed=7), rounds=3)
        one = replace(one, method=one.method.model_copy(update={"batch_size": 24, **changes}))
        mortal, other = (one.make_client_settings(shard, aggregator_url=AGGREGATOR) for shard in one.shards)
        async with run_federation(one.make_aggregator_settings(), (mortal, other)) as federation:
            await federation.enter(other)
            await federation.start(**one.run_request().model_dump(mode="json"))
            yield Disturbed(federation, mortal, Killer(monkeypatch))

    return run


@pytest.fixture(scope="module")
def remembered() -> dict[str, Left]:
    """Undisturbed runs, each of which is lived once."""
    return {}


@pytest.fixture
def undisturbed(disturbed: Callable[..., Any], remembered: dict[str, Left]) -> Callable[..., Any]:
    async def run(strategy: str, **changes: Any) -> Left:
        key = f"{strategy} {changes}"
        if key not in remembered:
            async with disturbed(strategy, name="undisturbed", **changes) as running:
                remembered[key] = await running.to_the_end()
        return remembered[key]

    return run


def updates_of(settings: ClientSettings) -> list[tuple[str, str]]:
    """Rounds and digests of the updates in the ledger, which holds."""
    assert Ledger(settings.state_directory / "ledger.jsonl").verify() > 0
    return [(entry["round"], entry["sha256"]) for entry in uploads(settings)]


@pytest.mark.parametrize("point", POINTS)
async def test_a_client_that_is_killed_anywhere_ends_where_it_would_have_ended(
    undisturbed: Any, disturbed: Any, point: str
) -> None:
    expected = await undisturbed("lpsfed")
    async with disturbed("lpsfed") as running:
        await running.kill(POINTS[point])
        assert await running.to_the_end() == expected
    assert [one["round"] for one in expected.figures["client-1"]["rounds"]] == [0, 1, 2, 3]
    sent = updates_of(running.mortal)
    assert set(sent) == {(str(n), one["client-1"]) for n, one in enumerate(expected.updates, start=1)}
    assert len(sent) == 4 if point == "before the upload" else 3
    left_over = [path.name for path in (running.mortal.state_directory / "model").iterdir()]
    assert not [name for name in left_over if name.endswith(".partial")]
    assert NAME not in left_over or point == "when the end is kept"  # the next run's takes its place


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [("pfedrec", {}), ("fedpub", {}), ("fedavg", {"optimiser": "rmsprop"}), ("local", {"warmup_trains": "tables"})],
)
@pytest.mark.parametrize("point", ["in an epoch", "while it waits", "while the checkpoint is written"])
async def test_so_it_does_with_other_models_and_optimisers(
    undisturbed: Any, disturbed: Any, strategy: str, changes: dict[str, Any], point: str
) -> None:
    expected = await undisturbed(strategy, **changes)
    async with disturbed(strategy, **changes) as running:
        await running.kill(POINTS[point])
        assert await running.to_the_end() == expected


async def test_one_that_is_killed_again_and_again_ends_where_it_would_have_ended(
    undisturbed: Any, disturbed: Any
) -> None:
    expected = await undisturbed("lpsfed")
    async with disturbed("lpsfed") as running:
        for point in AGAIN_AND_AGAIN:
            await running.kill(POINTS[point])
        await running.kill(at_call(TrainingRun, "fit", in_round(3), after=True))  # nor is it lived twice
        assert await running.to_the_end() == expected


async def test_one_whose_update_is_there_does_not_send_it_again_and_waits_for_the_others(
    undisturbed: Any, disturbed: Any, held: Hold
) -> None:
    expected = await undisturbed("lpsfed")
    stop = held("client-2", 2)
    async with disturbed("lpsfed") as running:
        await running.kill(POINTS["before the receipt"])
        async with running.back() as http:
            await wait_until(in_phase(http, "waiting for the round"))
            stop.released.set()
            assert await running.left(http) == expected
        assert [number for number, _ in updates_of(running.mortal)] == ["1", "2", "3"]


@dataclass
class Broken(httpx.AsyncBaseTransport):
    """A line on which the first few requests of one kind are lost, before they arrive or after."""

    inner: httpx.AsyncBaseTransport
    pattern: str
    answered: bool
    losses: int = 3

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lost = self.losses > 0 and re.fullmatch(self.pattern, f"{request.method} {request.url.path}") is not None
        self.losses -= lost
        if lost and not self.answered:
            raise httpx.ConnectError("the line is cut", request=request)
        answer = await self.inner.handle_async_request(request)
        if lost:
            raise httpx.ReadError("the line is cut", request=request)
        return answer


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("pattern", [PUT.format(2), GET.format(2), GET.format(3)])
async def test_nor_does_a_line_that_is_cut_in_a_round_make_a_client_train_twice(
    undisturbed: Any, disturbed: Any, pattern: str, answered: bool
) -> None:
    expected = await undisturbed("lpsfed")
    async with disturbed("lpsfed") as running:
        line = Broken(running.federation.line(), pattern, answered)
        async with running.back(line) as http:
            assert await running.left(http) == expected
        assert line.losses <= 2


@pytest.mark.parametrize("damage", ["lost", "changed"])
async def test_without_its_checkpoint_it_goes_on_from_its_best_model_and_says_so(
    disturbed: Any, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    async with disturbed("lpsfed") as running:
        await running.kill(POINTS["while it waits"])
        path = running.mortal.state_directory / "model" / NAME
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink() if damage == "lost" else path.write_bytes(content)
        found = await running.to_the_end()
    assert [one["round"] for one in found.figures["client-1"]["rounds"]] == [0, 1, 2, 3]
    said = "".join(record.getMessage() for record in caplog.records)
    assert ("training_checkpoint_refused" in said) == (damage == "changed")
    assert "training_lost" in said
    assert not re.search("user-[0-9]|item-[0-9]", said)


async def test_one_that_could_not_keep_its_training_leaves_the_aggregator_the_update_that_it_has(
    undisturbed: Any, disturbed: Any, held: Hold
) -> None:
    """As where the old process's upload arrives after the new one has asked how the round stands."""
    expected = await undisturbed("lpsfed")
    stop = held("client-2", 2)
    async with disturbed("lpsfed") as running:
        await running.kill(POINTS["before the receipt"])
        (running.mortal.state_directory / "model" / NAME).unlink()
        async with running.back(Forgetful(running.federation.line())) as http:

            async def sent_once_more() -> bool:
                waiting = await in_phase(http, "waiting for the round")()
                return waiting and [number for number, _ in updates_of(running.mortal)] == ["1", "2", "2"]

            await wait_until(sent_once_more)
            stop.released.set()
            found = await running.left(http)
    assert found.updates[:2] == expected.updates[:2] and found.updates[2] != expected.updates[2]
    assert [number for number, _ in updates_of(running.mortal)] == ["1", "2", "2", "3"]


@dataclass
class Forgetful(httpx.AsyncBaseTransport):
    """An aggregator that says of every update that it expects it."""

    inner: httpx.AsyncBaseTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self.inner.handle_async_request(request)
        if request.url.path != "/v1/runs/current":
            return answer
        content = (await answer.aread()).replace(b'"received"', b'"expected"', 1)
        content = content.replace(b'"expected":', b'"received":', 1)  # the field of that name stays
        return httpx.Response(answer.status_code, stream=httpx.ByteStream(content))
