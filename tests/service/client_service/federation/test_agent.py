"""The real client against the real aggregator in one process: whole runs, and everything that can come between."""

from __future__ import annotations

import gc
import math
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import httpx
import pytest

from client_service.boundary.ledger import Ledger
from client_service.federation.training_run import TrainingRun
from client_service.runtime.interruption import Interrupted
from shared.method.divergence import round_divergence
from shared.protocol.schemas import JoinOut, RunOut
from shared.protocol.signing.enrolment import KeyFiles, register_key_file, remove_key
from tests.support.federation import Line
from tests.support.given import Federate, Hold, Opened, Until
from tests.support.questions import LONGEST_SECONDS, entries_of, finished, has_problem, in_phase, is_set, read, uploads

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("strategy", "scalars"), [("lpsfed", {"margin", "rho"}), ("fedavg", set()), ("local", set())])
async def test_a_whole_run_of_three_clients(
    federation: Federate, until: Until, strategy: str, scalars: set[str]
) -> None:
    async with federation(3, strategy=strategy) as running:
        one, two, three = await running.enter()
        await running.start()
        await until(finished(one, two, three))
        history = await running.history()
        assert history["phase"] == "finished" and [entry["missing"] for entry in history["rounds"]] == [[], []]
        for http in (one, two, three):
            quality, status = await read(http, "quality"), await read(http, "status")
            assert [entry["round"] for entry in quality["rounds"]] == [0, 1, 2]
            assert (quality["failure"], quality["test_users"]) == (None, 16)
            assert set(quality["test"]) == {"recall@20", "ndcg@20"}
            assert (status["phase"], status["round"], "problem" in status) == ("finished", 2, False)
            assert status["model"] == f"run-1.{quality['best_round']}" and len(status["shared_digest"]) == 64
        if strategy == "fedavg":  # it has no anchor, and so there are no spectra to see
            assert (await read(one, "spectrum"))["own"] == []
        digests = {(await read(http, "status"))["shared_digest"] for http in (one, two, three)}
        assert len(digests) == (1 if strategy == "fedavg" else 3)
    for settings in running.clients:
        sent = uploads(settings)
        assert [entry["round"] for entry in sent] == ["1", "2"]
        assert all(set(entry["scalars"]) == scalars for entry in sent)
        assert {len(entry["tensors"]) for entry in sent} == {0 if strategy == "local" else 8}
        assert Ledger(settings.state_directory / "ledger.jsonl").verify() > 0


async def test_a_round_that_was_trained_before_costs_what_it_takes_now(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training is the one of before, and took more than all of the round as it is done again."""
    fit = TrainingRun.fit
    monkeypatch.setattr(TrainingRun, "fit", lambda *given: (fit(*given)[0], 1_000.0))
    async with federation(2) as running:
        silo, other = await running.enter()
        await running.start()
        await until(finished(silo, other))
        rounds = (await read(silo, "quality"))["rounds"][1:]
    assert [one["train_seconds"] for one in rounds] == [1_000.0, 1_000.0]
    assert all(0.0 <= one["overhead_seconds"] < 1_000.0 for one in rounds)


async def test_an_aggregator_that_cannot_be_reached_is_shown_and_the_client_goes_on_when_it_can(
    federation: Federate, opened: Opened, until: Until
) -> None:
    async with federation(1) as running:
        line = Line(None)
        async with opened(running.clients[0], line) as http:
            await until(has_problem(http, "cannot be reached"))
            await running.start()
            line.app = running.app
            await until(finished(http))
            assert "problem" not in await read(http, "status")


def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> str:
    del monkeypatch
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{reserved.getsockname()[1]}"


def no_such_name(monkeypatch: pytest.MonkeyPatch) -> str:
    def unresolved(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    return "http://aggregator:8800"


@pytest.mark.parametrize("place", [nobody_listens, no_such_name])
async def test_a_client_that_starts_before_the_aggregator_goes_on_asking_for_it(
    federation: Federate, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch, place: Callable[..., str]
) -> None:
    async with federation(1) as running:
        settings = running.clients[0].model_copy(update={"aggregator_url": place(monkeypatch)})
        async with opened(settings, httpx.AsyncHTTPTransport()) as http:

            async def asked_often() -> bool:
                return int((await read(http, "ledger"))["total"]) >= 12

            await until(asked_often)
            await until(has_problem(http, "the aggregator cannot be reached: ConnectError"))
            assert (await read(http, "status"))["phase"] == "joining"
            assert (await http.get("/health/live")).json() == {"status": "live"}
            assert (await http.get("/health/ready")).json() == {"status": "ready", "model": "none yet"}
            entries = (await read(http, "ledger"))["entries"]
        assert {entry["error"] for entry in entries if entry["kind"] == "outcome"} == {"ConnectError"}


@pytest.mark.parametrize("change", [{"width": 8}, {"layers": 2}])
async def test_a_run_that_would_send_more_than_was_declared_gets_nothing(
    federation: Federate, opened: Opened, until: Until, change: dict[str, int]
) -> None:
    asked = []

    def lying(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path))
        if request.url.path == "/v1/clients":
            answer = JoinOut(client="client-1", clients=1).model_dump_json()
        else:
            wide = running.clients[0].method.model_copy(update=change)
            state = RunOut(sequence=1, run="run-1", phase="open", round=1, rounds=2, standing="expected", method=wide)
            answer = state.model_dump_json()
        return httpx.Response(200, stream=httpx.ByteStream(answer.encode()))

    async with federation(1) as running, opened(running.clients[0], httpx.MockTransport(lying)) as http:
        await until(has_problem(http, "would send other parameters than this client has declared"))
        assert (await http.get("/v1/users/user-01/recommendations")).status_code == 200
    assert set(asked) == {("POST", "/v1/clients"), ("GET", "/v1/runs/current")}
    assert uploads(running.clients[0]) == []


async def test_an_aggregator_of_another_federation_refuses_the_client_and_it_says_so(
    federation: Federate, opened: Opened, until: Until
) -> None:
    async with federation(1, strategy="fedavg") as running:
        other = running.clients[0].model_copy(update={"strategy": "lpsfed"})
        async with opened(other, running.line()) as http:
            await until(has_problem(http, "the aggregator answered: "))
    assert uploads(other) == []


async def test_somebody_else_s_name_is_refused_for_want_of_its_key(
    federation: Federate, opened: Opened, until: Until, tmp_path: Path
) -> None:
    async with federation(1) as running, opened(running.clients[0], running.line()) as owner:
        await running.start(rounds=1)
        await until(finished(owner))
        thief = running.clients[0].model_copy(update={"state_directory": tmp_path / "elsewhere"})
        async with opened(thief, running.line()) as http:
            await until(has_problem(http, "the aggregator answered: signature: expected this request signed"))


async def test_a_client_whose_key_is_registered_late_joins_then_and_is_held_up_when_it_is_removed(
    federation: Federate, opened: Opened, until: Until, keys: Path
) -> None:
    async with federation(1) as running:
        [settings] = running.clients
        async with opened(settings, running.line()) as http:
            remove_key(settings.name, keys)
            await until(has_problem(http, "registered under this name"))
            register_key_file(KeyFiles.of(settings.name, settings.state_directory).public, keys)
            await running.start(rounds=1)
            await until(finished(http))
            remove_key(settings.name, keys)
            await until(has_problem(http, "registered under this name"))


async def test_a_client_whose_clock_is_wrong_says_by_how_much(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = SimpleNamespace(now=lambda zone: datetime.now(zone) - timedelta(seconds=600))
    monkeypatch.setattr("client_service.boundary.ledger.datetime", late)
    async with federation(1) as running:
        [http] = await running.enter()
        await until(has_problem(http, "s behind it: set the clocks"))
        assert re.search(
            r"within 60 s of the aggregator's clock, got one 60\d s behind", (await read(http, "status"))["problem"]
        )


async def test_a_round_that_closed_without_this_client_is_gone_on_from(
    federation: Federate, until: Until, held: Hold
) -> None:
    stop = held("client-2", 1)
    async with federation(2) as running:
        one, two = await running.enter()
        await running.start(quorum=1)
        await until(is_set(stop.reached))
        await until(in_phase(one, "waiting for the round"))
        running.clock.pass_the_deadline()

        async def second_round() -> bool:
            return len((await running.history())["rounds"]) == 2

        await until(second_round)
        stop.released.set()
        await until(finished(one, two))
        rounds = (await running.history())["rounds"]
        assert [entry["missing"] for entry in rounds] == [["client-2"], []]
        assert [entry["round"] for entry in (await read(two, "quality"))["rounds"]] == [0, 1, 2]
    assert [entry["round"] for entry in uploads(running.clients[1])] == ["1", "2"]


async def test_a_run_that_fails_ends_with_its_failure_and_the_next_one_works(
    federation: Federate, until: Until, held: Hold
) -> None:
    stop = held("client-2", 1)
    async with federation(2) as running:
        one, two = await running.enter()
        await running.start()
        await until(is_set(stop.reached))
        await until(in_phase(one, "waiting for the round"))
        running.clock.pass_the_deadline()
        await until(finished(one))
        assert "failed" in (await read(one, "quality"))["failure"]
        assert (await read(one, "status"))["phase"] == "failed"
        assert (await running.history())["phase"] == "failed"
        assert (await one.get("/v1/users/user-01/recommendations")).json()["model"] == "run-1.0"
        stop.released.set()
        await until(finished(two))
        assert "failed" in (await read(two, "quality"))["failure"]
        await running.start(rounds=1)
        await until(finished(one, two, run="run-2"))
        quality, status = await read(one, "quality"), await read(one, "status")
        assert quality["failure"] is None and [entry["round"] for entry in quality["rounds"]] == [0, 1]
        assert (status["run"], status["model"]) == ("run-2", f"run-2.{quality['best_round']}")


async def test_a_client_whose_run_is_over_lets_go_of_what_trained_and_still_tells_of_it(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, opened = WeakSet[TrainingRun](), TrainingRun.__init__

    def note(part: TrainingRun, *args: Any, **given: Any) -> None:
        opened(part, *args, **given)
        begun.add(part)

    async def all_gone() -> bool:
        gc.collect()
        return not begun

    monkeypatch.setattr(TrainingRun, "__init__", note)
    async with federation(2) as running:
        one, two = await running.enter()
        await running.start()
        await until(in_phase(one, "training"))
        assert len(begun) >= 1
        await until(finished(one, two))
        await until(all_gone)
        assert [entry["round"] for entry in (await read(one, "quality"))["rounds"]] == [0, 1, 2]
        assert len((await read(one, "spectrum"))["own"]) > 0
        answer = (await one.get("/v1/users/user-01/recommendations")).json()
        assert answer["model"] == (await read(one, "status"))["model"]
        basket = await one.post("/v1/recommendations", json={"basket": ["item-01"]})
        assert basket.json()["results"][0]["model"] == answer["model"]


@dataclass
class Slow:
    """A verb of one client's training run that takes, once, until it is interrupted."""

    client: str
    verb: str
    reached: threading.Event = field(default_factory=threading.Event)
    interrupted: bool = False


@pytest.fixture
def slowed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Slow]:
    def slow_down(client: str, verb: str) -> Slow:
        found, real = Slow(client, verb), getattr(TrainingRun, verb)

        def slow(part: TrainingRun, *args: Any) -> Any:
            place, interrupt = (args[0], args[-1]) if verb == "__init__" else (part.place, part._best._interrupt)
            if place.client != client or found.reached.is_set():
                return real(part, *args)
            found.reached.set()
            assert interrupt._wished.wait(LONGEST_SECONDS)
            try:
                return real(part, *args)
            except Interrupted:
                found.interrupted = True
                raise

        monkeypatch.setattr(TrainingRun, verb, slow)
        return found

    return slow_down


@pytest.mark.parametrize("verb", ["__init__", "begin", "fit", "apply", "finish"])
async def test_a_client_that_is_told_to_stop_in_the_middle_of_its_work_stops_and_takes_it_up_again(
    federation: Federate, opened: Opened, until: Until, slowed: Callable[[str, str], Slow], verb: str
) -> None:
    slow = slowed("client-2", verb)
    async with federation(2) as running, opened(running.clients[0], running.line()) as one:
        settings = running.clients[1]
        async with opened(settings, running.line()) as two:
            await running.start()
            await until(is_set(slow.reached))
        assert slow.interrupted
        assert list(settings.state_directory.rglob("*.partial")) == []
        async with opened(settings, running.line()) as two:
            await until(finished(one, two))
            rounds = (await read(two, "quality"))["rounds"]
        assert [entry["missing"] for entry in (await running.history())["rounds"]] == [[], []]
    assert [entry["round"] for entry in rounds] == [0, 1, 2]
    assert [entry["call"] for entry in entries_of(settings) if entry.get("call") == "join"] == ["join"] * 2
    assert Ledger(settings.state_directory / "ledger.jsonl").verify() > 0


async def test_the_silo_sees_the_spectra_that_its_latest_rho_compares(
    federation: Federate, opened: Opened, until: Until
) -> None:
    async with federation(1) as running:
        [http] = await running.enter()
        empty = {"run": None, "round": 0, "own": [], "anchor": [], "rho": None}
        assert await read(http, "spectrum") == empty
        await running.start()
        await until(finished(http))
        found, quality = await read(http, "spectrum"), await read(http, "quality")
        own, anchor = found["own"], found["anchor"]
        assert (found["run"], found["round"], found["rho"]) == ("run-1", 2, quality["rounds"][-1]["rho"])
        assert len(own) == len(anchor) >= 8 and (own, anchor) == (sorted(own), sorted(anchor))
        assert (sum(own), sum(anchor)) == (pytest.approx(1.0), pytest.approx(1.0))
        rho = sum(theirs * math.log(theirs / ours) for ours, theirs in zip(own, anchor, strict=True))
        assert found["rho"] == round_divergence(rho)
    async with opened(running.clients[0]) as http:  # after a restart, and without an aggregator
        assert await read(http, "spectrum") == found


async def test_recommendations_go_on_from_the_last_complete_model_while_a_round_trains(
    federation: Federate, until: Until, held: Hold
) -> None:
    stop = held("client-1", 2)
    async with federation(1) as running:
        [http] = await running.enter()
        await running.start(rounds=2)
        await until(is_set(stop.reached))
        status, quality = await read(http, "status"), await read(http, "quality")
        assert (status["phase"], status["round"]) == ("training", 2)
        assert status["model"] == f"run-1.{quality['best_round']}" and quality["best_round"] in (0, 1)
        answers = [(await http.get(f"/v1/users/user-{row:02d}/recommendations")).json() for row in range(16)]
        assert {answer["model"] for answer in answers} == {status["model"]}
        assert all(answer["items"] and "fallback" not in answer for answer in answers)
        batch = await http.post("/v1/recommendations", json={"basket": ["item-00"]})
        assert batch.json()["results"][0]["model"] == status["model"]
        assert (await http.get("/v1/items/item-00/similar")).json()["model"] == status["model"]
        assert (await read(http, "status"))["phase"] == "training" and not stop.released.is_set()
        stop.released.set()
        await until(finished(http))
        after = await read(http, "quality")
        best = max(after["rounds"], key=lambda entry: entry["ndcg"])["round"]  # the first of the best
        assert (after["best_round"], (await read(http, "status"))["model"]) == (best, f"run-1.{best}")


async def test_a_quarantined_client_sends_nothing_reads_on_and_says_so_until_it_is_let_in(
    federation: Federate, until: Until, held: Hold
) -> None:
    stop, place = held("client-1", 2), "/v1/clients/client-2/quarantine"
    async with federation(2) as running:
        one, two = await running.enter()

        async def shut_out() -> bool:
            answer = await running.operator.post(place, json={"reason": "its shard is being repaired"})
            return bool(answer.status_code == 201)  # 404 until it has joined

        async def warned() -> bool:
            return any("has quarantined this client" in one for one in (await read(two, "status"))["warnings"])

        await until(shut_out)
        await running.start(clients=1)
        await until(is_set(stop.reached))
        await until(warned)
        stop.released.set()
        await until(finished(one, two))
        assert uploads(running.clients[1]) == []
        assert [entry["round"] for entry in (await read(two, "quality"))["rounds"]][-1] == 2
        assert (await running.operator.delete(place)).status_code == 200
        await running.start(rounds=1)
        await until(finished(one, two, run="run-2"))
        assert not await warned()
    assert [entry["round"] for entry in uploads(running.clients[1])] == ["1"]
