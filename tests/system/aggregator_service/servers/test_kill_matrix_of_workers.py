"""SIGKILL of a worker, the one that leads or another, at every step of a round: it ends as the undisturbed one.

Three processes on one PostgreSQL, with bodies in a bucket or a folder; each dies at its step by itself
(`tests/system/faults/worker_steps.py`) and is started again afterwards. What is compared are the digests of all states
with those of one process alone. Nothing that was acknowledged may be missing. `make faults-of-workers` runs every cell
and prints how long each took from the death to the end of the step.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from anyio import to_thread
from fastapi import FastAPI

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from aggregator_service.storage.run_store import stored_states
from shared.protocol.signing.enrolment import ensure_key_pair, public_file
from shared.protocol.signing.keys import read_private
from tests.service.aggregator_service.secure.conftest import NAMES as SECURE_NAMES
from tests.service.aggregator_service.secure.conftest import PHASES, Masking, SecureFederation, content
from tests.support.aggregator import METHOD, Federation
from tests.support.clock import LeapingClock
from tests.support.federation import run_app
from tests.support.process import AggregatorProcess
from tests.support.small import small_aggregator
from tests.system.aggregator_service.servers.conftest import TAKEN_OVER, Place, Store, at_the_store
from tests.system.faults.worker_steps import FOLDER, LEADER, arm

if TYPE_CHECKING:
    from conftest import FakeClient, PostgresServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.processes,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ROOT = Path(__file__).parents[4]
NAMES = [f"client-{number}" for number in range(4)]
ROUNDS = 3
HIT = 2  # round
TAKEN_OVER_SECONDS = 10.0
LONGEST_SECONDS = 60.0  # of a wait; a bound alone
DEADLINE_SECONDS = 6.0  # of a round that one client misses
LEADS, FRONT = "leader", "other"
BUCKET, IN_FOLDER, SECURE = "bucket", "folder", "secure"
JOINING = ("row of a member", "enrolment")
RECEIVING = ("nonce: before", "nonce: after", "half of an update in its file", "half of an update in the bucket",
             "an update in the bucket, no row", "receipt: before", "receipt: after", "arrival: before",
             "arrival: after")  # fmt: skip
CLOSING = ("close: before", "close: after", "sum: before", "sum: after", "half of the state in its file",
           "half of the state in the bucket", "the state in the bucket, no row", "row of the state: before",
           "row of the state: after", "pruning: before", "pruning of rows: before", "pruning of rows: after",
           "pruning: one body is gone")  # fmt: skip
MOMENTS = ("before", "after")
BLOCKS = [f"block of the {step}: {moment}" for step in ("check", "sum") for moment in ("claimed", *MOMENTS)]
SECURELY = [
    f"{part}: {one}" for part in ("part of masked", *(f"end of {phase}" for phase in PHASES)) for one in MOMENTS
]
OUTCOMES = ("sum: after", "the state in the bucket, no row", "row of the state: before", "row of the state: after",
            "pruning of masked rows: after")  # fmt: skip
ALWAYS = ("the state in the bucket, no row", LEADS)  # the others are for `make faults-of-workers`


def cells() -> Iterator[Any]:
    both, joining = (FRONT, LEADS), [f"{step}: {moment}" for step in JOINING for moment in MOMENTS]
    yield from ((BUCKET, step, who) for step in (*joining, *RECEIVING) for who in both)
    yield from ((BUCKET, step, LEADS) for step in (*CLOSING, "deadline, close: before", "deadline, close: after"))
    yield from ((IN_FOLDER, step, who) for step in BLOCKS for who in both)
    yield from ((BUCKET, step, who) for step in BLOCKS if "sum" in step for who in both)  # ranges are checked in it
    yield from ((SECURE, step, who) for step in SECURELY for who in both)
    yield from ((SECURE, step, LEADS) for step in OUTCOMES)


def body_of(client: FakeClient, number: int, place: int) -> bytes:
    return client.update(float(place + number) / 3, rho=0.1, margin=0.5)


@dataclass
class Workers:
    """Three workers of one federation; `states` of undisturbed runs by their kind."""

    folder: Path
    place: Place
    bodies: str
    settings: AggregatorSettings
    processes: list[AggregatorProcess]
    objects: Callable[[], set[str]]
    undisturbed: dict[str, list[str]]
    key: Any
    calls: list[httpx.AsyncClient] = field(default_factory=list)

    def start(self) -> None:
        """Starts those that do not run."""
        ended = [one for one in self.processes if one.process is None or one.process.poll() is not None]
        for one in ended:
            one.start()
        for one in ended:
            one._wait_until_ready()

    def pid(self, number: int) -> int:
        process = self.processes[number].process
        assert process is not None
        return process.pid

    async def roles(self) -> tuple[int, int, int]:
        """Numbers of the worker that leads and of the others."""
        with anyio.fail_after(LONGEST_SECONDS):
            while True:
                with suppress(FileNotFoundError, ValueError):
                    led = int((self.folder / LEADER).read_text())
                    found = [number for number in range(3) if self.pid(number) == led]
                    if found:
                        return found[0], *(number for number in range(3) if number != found[0])
                await anyio.sleep(0.05)

    def at(self, http: httpx.AsyncClient, run: str = "run-1") -> Federation:
        app = FastAPI()
        app.state.coordinator = SimpleNamespace(signing_key=self.key)
        return Federation(app, http, self.settings, None, run)

    def states(self, run: str) -> list[str]:
        rows = self.place.rows(f"select digest from states where run = '{run}' order by round")
        return [digest for (digest,) in rows]


@dataclass
class Killing:
    """One cell: a run in which a worker dies. `told`: digests of acknowledged updates by round and client."""

    workers: Workers
    step: str
    victim: int
    helper: int
    third: int
    took: float | None = None
    died: float = 0.0
    told: dict[tuple[int, str], str] = field(default_factory=dict)

    def calling(self, number: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.workers.processes[number].url, trust_env=False, timeout=LONGEST_SECONDS)

    async def strike(self, at_victim: Callable[[], Any] | None) -> None:
        """Arms the step, makes the call that leads to it, and waits for the death."""
        process = self.workers.processes[self.victim].process
        assert process is not None
        arm(self.workers.folder, self.step, process.pid)
        async with anyio.create_task_group() as tasks:
            if at_victim is not None:
                tasks.start_soon(self._try, at_victim)
            with anyio.fail_after(LONGEST_SECONDS):
                while process.poll() is None:
                    await anyio.sleep(0.01)
            self.died = time.monotonic()
        assert process.returncode == -9, process.returncode

    async def _try(self, call: Callable[[], Any]) -> None:
        with suppress(httpx.TransportError):
            await call()

    def is_over(self) -> None:
        self.took = time.monotonic() - self.died

    async def put(self, client: FakeClient, number: int, place: int) -> None:
        body = body_of(client, number, place)
        with anyio.fail_after(LONGEST_SECONDS):
            while (answer := await client.put(number, body)).status_code == 503:
                await anyio.sleep(0.1)
        assert answer.status_code in (200, 201), answer.text
        self.told[number, client.name] = hashlib.sha256(body).hexdigest()

    def check(self, run: str, kind: str) -> None:
        workers = self.workers
        assert workers.states(run) == workers.undisturbed[kind]
        stored = workers.place.rows(f"select round, client, digest from updates where run = '{run}'")
        found = {(number, client): digest for number, client, digest in stored}
        assert {place: found.get(place) for place in self.told} == self.told
        named = "select blob from updates where blob is not null union select blob from states where blob is not null"
        there = workers.objects()  # before the rows: pruning goes on, and takes the row first
        assert {blob for (blob,) in workers.place.rows(named)} <= there


async def kill_in_an_open_run(killing: Killing) -> None:
    workers, step = killing.workers, killing.step
    joins, deadline = step.startswith(JOINING), step.startswith("deadline, ")
    killing.step = step.removeprefix("deadline, ")
    names = [*NAMES, f"late-{abs(hash((step, killing.victim)))}"] if joins else NAMES
    async with (
        killing.calling(killing.helper) as there,
        killing.calling(killing.victim) as dying,
        killing.calling(killing.third) as third,
    ):
        asked = workers.at(there)
        await asked.joined(*NAMES)
        request = {"rounds": ROUNDS, "clients": len(names), "method": workers.settings.method.model_dump(mode="json")}
        if deadline:
            request |= {"quorum": len(names) - 1, "deadline_seconds": DEADLINE_SECONDS}
        started = await asked.start_run(**request)
        assert started.status_code == 201, started.text
        run = started.json()["run"]
        at_victim, at_helper, at_third = (workers.at(http, run) for http in (dying, there, third))
        if joins:
            late = at_victim.client(names[-1])
            await killing.strike(late.join)
            assert (await at_helper.client(names[-1]).join()).status_code == 200
            killing.is_over()
        for number in range(1, ROUNDS + 1):
            hit = number == HIT and not joins
            for place, name in enumerate(names[:-1]):
                await killing.put((at_helper, at_third)[place % 2].client(name), number, place)
            last = at_helper.client(names[-1])
            if hit:
                call = None if deadline else partial(killing.put, last, number, len(names) - 1)
                if step in RECEIVING:
                    dies = at_victim.client(names[-1])
                    call = partial(dies.put, number, body_of(dies, number, len(names) - 1))
                await killing.strike(call)
            if not (hit and deadline):
                await killing.put(last, number, len(names) - 1)
            answer = (
                await last.personalised(number, wait=30)
                if not (hit and deadline)
                else await at_helper.client(names[0]).personalised(number, wait=30)
            )
            assert answer.status_code == 200, answer.text
            if hit:
                killing.is_over()
        killing.check(run, "deadline" if deadline else f"open, {len(names)}")
        if joins:
            public_file(names[-1], workers.settings.registry).unlink()


async def kill_in_a_secure_run(killing: Killing) -> None:
    workers, names = killing.workers, SECURE_NAMES[:4]
    async with killing.calling(killing.helper) as there, killing.calling(killing.victim) as dying:
        asked = workers.at(there)
        fakes = await asked.joined(*names)
        started = await asked.start_run(rounds=1, clients=len(names))
        assert started.status_code == 201, started.text
        run = started.json()["run"]
        at_victim, at_helper = workers.at(dying, run), workers.at(there, run)
        fakes = [replace(one, run=run) for one in fakes]
        clients = {one.name: Masking(one, content(one, seed), at_helper) for seed, one in enumerate(fakes)}
        made = SecureFederation(at_helper, clients)
        said = killing.step.partition(":")[0].rpartition(" ")[2]
        for phase in PHASES[: PHASES.index(said)] if said in PHASES else PHASES[:-1]:
            await made.phase(phase)
        if said in PHASES:
            for masking in clients.values():
                masking.fake = at_victim.client(masking.name)
            await killing.strike(partial(made.phase, said))
            made.again(at_helper)
            await made.phase(said)
            if said == PHASES[-1]:
                await made.clients[names[0]].fake.personalised(1)
            killing.is_over()
            for phase in PHASES[PHASES.index(said) + 1 :]:
                await made.phase(phase)
        else:
            await killing.strike(partial(made.phase, PHASES[-1]))
        answer = await clients[names[0]].fake.personalised(1)
        assert answer.status_code == 200, answer.text
        if killing.took is None:
            killing.is_over()
        killing.check(run, SECURE)
        with anyio.fail_after(LONGEST_SECONDS):  # what a worker that died in between has left is the next one's to do
            while workers.place.rows(f"select 1 from secure_messages where run = '{run}'"):
                await anyio.sleep(0.05)


async def run_alone(folder: Path, secure: bool) -> dict[str, list[str]]:
    """States of undisturbed runs of one process with its own files."""
    clock = LeapingClock()
    settings = small_aggregator(folder, method=METHOD, secure=secure, longest_body_seconds=2.0)
    app, found = create_app(settings, clock=clock), {}
    async with run_app(app, "http://aggregator") as http:
        federation = Federation(app, http, settings, clock)
        if secure:
            fakes = await federation.joined(*SECURE_NAMES[:4])
            assert (await federation.start_run(rounds=1, clients=4)).status_code == 201
            clients = {one.name: Masking(one, content(one, seed), federation) for seed, one in enumerate(fakes)}
            await SecureFederation(federation, clients).until("answers")
            await SecureFederation(federation, clients).phase("answers")
            assert (await fakes[0].personalised(1)).status_code == 200
            return {SECURE: states_of(app, "run-1")}
        for turn, kind in enumerate((f"open, {len(NAMES)}", "deadline", f"open, {len(NAMES) + 1}"), start=1):
            run, names = f"run-{turn}", NAMES if turn < 3 else [*NAMES, "late"]
            clients = [replace(one, run=run) for one in await federation.joined(*names)]
            answer = await federation.start_run(rounds=ROUNDS, clients=len(names), quorum=len(names) - 1)
            assert answer.status_code == 201, answer.text
            for number in range(1, ROUNDS + 1):
                misses = kind == "deadline" and number == HIT
                for place, client in enumerate(clients[:-1] if misses else clients):
                    assert (await client.put(number, body_of(client, number, place))).status_code == 201
                if misses:
                    clock.pass_the_deadline()
                assert (await clients[0].personalised(number)).status_code == 200
            found[kind] = states_of(app, run)
    return found


def states_of(app: FastAPI, run: str) -> list[str]:
    with app.state.coordinator.federation.archive.database.reading() as connection:
        return [state.digest for state in stored_states(connection, run)]


@pytest.fixture(scope="module")
def federations(
    one_server: PostgresServer, one_store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Workers]]:
    """The workers of one kind of federation, which are started when a test first asks for them."""
    running: dict[str, Workers] = {}

    def start(kind: str) -> Workers:
        if kind in running:
            running[kind].start()
            return running[kind]
        for one in running.values():
            end(one)
        running.clear()
        folder = tmp_path_factory.mktemp(kind)
        place, store = Place(one_server), stack.enter_context(at_the_store(one_store, patch))
        one_server.execute(f"create database {place.name}")
        bodies = store.url if kind != IN_FOLDER else str(folder / "bodies")
        key = ensure_key_pair("aggregator", folder).private
        shared = {
            "method": METHOD, "database": place.url, "blobs": bodies, "shared": True, "secure": kind == SECURE,
            "keys_directory": folder / "registry", "signing_key_file": key, "retention_rounds": 1,
            "longest_body_seconds": 2.0,
        }  # fmt: skip
        processes = [
            AggregatorProcess(
                folder / f"worker-{one}", shared, ("-m", "tests.system.faults.worker_steps"), ROOT,
                log=folder / f"log-{one}",
            )
            for one in range(3)
        ]  # fmt: skip
        patch.setenv(FOLDER, str(folder))
        objects = store.names if kind != IN_FOLDER else lambda: set(os.listdir(bodies))
        undisturbed = anyio.run(run_alone, tmp_path_factory.mktemp("alone"), kind == SECURE)
        made = Workers(folder, place, bodies, small_aggregator(folder / "asked", **shared), processes, objects,
                       undisturbed, read_private(key))  # fmt: skip
        running[kind] = made
        made.start()
        return made

    def end(one: Workers) -> None:
        for process in one.processes:
            process.kill()

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        try:
            yield start
        finally:
            for one in running.values():
                end(one)


PARAMETERS = [
    pytest.param(*cell, marks=() if cell[0] == BUCKET and cell[1:] == ALWAYS else pytest.mark.slow) for cell in cells()
]


@pytest.mark.parametrize(("kind", "step", "who"), PARAMETERS)
async def test_the_round_ends_as_undisturbed(
    kind: str,
    step: str,
    who: str,
    federations: Callable[[str], Workers],
    record_property: Callable[[str, object], None],
) -> None:
    workers = await to_thread.run_sync(federations, kind)
    leads, front, third = await workers.roles()
    victim, helper = (leads, front) if who == LEADS else (front, leads)
    killing = Killing(workers, step, victim, helper, third)
    await (kill_in_a_secure_run if kind == SECURE else kill_in_an_open_run)(killing)
    assert killing.took is not None
    record_property(TAKEN_OVER, (f"{kind}: {step}", who, killing.took))
    assert killing.took < TAKEN_OVER_SECONDS
