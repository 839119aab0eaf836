"""Several workers on one PostgreSQL: a federation that any of them serves, whichever is killed or stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest
from fastapi import FastAPI

from shared.protocol.signing.enrolment import ensure_key_pair
from tests.support.aggregator import METHOD, Federation
from tests.support.process import AggregatorProcess
from tests.support.small import small_aggregator

if TYPE_CHECKING:
    from conftest import FakeClient, Place, Running

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.filterwarnings("default")]
NAMES = [f"client-{number}" for number in range(6)]
TAKEN_OVER_SECONDS = 10.0


class Workers:
    """Processes that share a database, a folder of bodies, the registry and the signing key."""

    def __init__(self, folder: Path, url: str, count: int) -> None:
        key = ensure_key_pair("aggregator", folder).private
        shared = {
            "method": METHOD,
            "database": url,
            "blobs": str(folder / "bodies"),
            "shared": True,
            "keys_directory": folder / "registry",
            "signing_key_file": key,
        }
        self.processes = [
            AggregatorProcess(folder / f"worker-{one}", shared, log=folder / f"log-{one}") for one in range(count)
        ]
        self.settings = small_aggregator(folder / "asked", **shared)

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            for one in self.processes:
                one.start()
            for one in self.processes:
                one._wait_until_ready()
            yield
        finally:
            for one in self.processes:
                one.kill()

    def signal(self, number: int, how: signal.Signals) -> None:
        process = self.processes[number].process
        assert process is not None
        process.send_signal(how)

    def find_leader(self) -> tuple[int, int]:
        """The numbers of the worker that leads, and of another one: each logs when it begins to."""
        told = [one.log.read_text().count("worker_leads") for one in self.processes if one.log]
        return told.index(1), told.index(0)

    @asynccontextmanager
    async def asked(self, number: int) -> AsyncIterator[Federation]:
        """The federation as this worker serves it."""
        url = self.processes[number].url
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
            yield Federation(FastAPI(), http, self.settings, None)


@pytest.fixture
def workers(tmp_path: Path, place: Place) -> Callable[..., Workers]:
    return lambda count: Workers(tmp_path, place.url, count)


def body_of(client: FakeClient, number: int) -> bytes:
    return client.update(float(NAMES.index(client.name) + number), rho=0.1, margin=0.5)


async def test_uploads_to_either_worker_end_one_round(workers: Callable[[int], Workers]) -> None:
    two = workers(2)
    with two.running():
        async with two.asked(0) as one, two.asked(1) as other:
            clients = await one.begun(*NAMES)
            there = [other.client(client.name) for client in clients]
            for number in (1, 2):
                for client, elsewhere in zip(clients, there, strict=True):
                    asked = client if NAMES.index(client.name) % 2 else elsewhere
                    answer = await asked.put(number, body_of(client, number))
                    assert answer.status_code == 201, answer.text
                    again = elsewhere if asked is client else client
                    assert (await again.put(number, body_of(client, number))).status_code == 200
                assert await clients[0].level(number, wait=20) == 2.5 + number
                assert await there[1].level(number, wait=20) == 2.5 + number
            assert (await other.history())["phase"] == "finished"
            assert (await one.history())["rounds"] == (await other.history())["rounds"]
            assert (await one.history())["phase"] == "finished"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_leader_that_dies_or_stalls_is_replaced_and_writes_nothing_more(
    workers: Callable[[int], Workers], place: Place, how: signal.Signals
) -> None:
    """The round ends at the other worker, within the time of a take-over."""
    two = workers(2)
    with two.running():
        async with two.asked(0) as first, two.asked(1) as second:
            clients = await first.begun(*NAMES)
            for client in clients[:-1]:
                assert (await client.put(1, body_of(client, 1))).status_code == 201
            led, other = two.find_leader()
            asked = (first, second)[other]
            began = time.monotonic()
            two.signal(led, how)
            last = asked.client(NAMES[-1])
            assert (await last.put(1, body_of(last, 1))).status_code == 201
            assert await last.level(1, wait=30) == 3.5
            assert time.monotonic() - began < TAKEN_OVER_SECONDS
            if how == signal.SIGSTOP:
                two.signal(led, signal.SIGCONT)
                clients = [(first, second)[led].client(name) for name in NAMES]
                await until_ready((first, second)[led])
            else:
                clients = [asked.client(name) for name in NAMES]
            for client in clients:
                assert (await client.put(2, body_of(client, 2))).status_code == 201
            assert await clients[0].level(2, wait=30) == 4.5
            assert (await asked.history())["phase"] == "finished"
            assert place.rows("select round from states order by round") == [(1,), (2,)]


async def until_ready(federation: Federation) -> None:
    with anyio.fail_after(60):
        while not (await federation.http.get("/health/ready")).is_success:
            await anyio.sleep(0.05)


PAUSES = """
create table pauses (what text);
create function pause() returns trigger language plpgsql as $$ begin
  if exists (select from pauses where what = tg_table_name) then perform pg_sleep(4); end if; return new;
end $$;
create trigger pause before insert on updates for each row execute function pause();
create trigger pause before insert on states for each row execute function pause();
create trigger pause before update on runs for each row execute function pause();
"""
STEPS = ("updates", "runs", "states")
"""Row by row: a receipt, the end of a round, its sum. It is killed before the commit."""


@pytest.mark.slow  # the kills of test_kill_matrix_of_workers.py, here in the middle of a transaction
async def test_whoever_is_killed_in_a_transaction_the_round_ends_as_undisturbed(
    workers: Callable[[int], Workers], place: Place, running: Running
) -> None:
    """Three workers: the one that takes an upload is killed, then twice the one that leads."""
    async with running() as federation:
        alone = await federation.begun(*NAMES, rounds=len(STEPS))
        wanted = []
        for number in range(1, len(STEPS) + 1):
            for client in alone:
                assert (await client.put(number, body_of(client, number))).status_code == 201
            wanted.append((await alone[0].personalised(number, wait=20)).content)
    three = workers(3)
    with three.running():
        async with three.asked(0) as one:
            await one.begun(*NAMES, rounds=len(STEPS))
        place.rows(PAUSES)
        for number, step in enumerate(STEPS, start=1):
            led, other = three.find_leader()
            killed = other if step == "updates" else led
            (asked,) = {0, 1, 2} - {led, other}
            async with three.asked(asked) as there, three.asked(killed) as dying:
                clients = [there.client(name) for name in NAMES]
                for client in clients[:-1]:
                    assert (await client.put(number, body_of(client, number))).status_code == 201
                place.rows(f"insert into pauses values ('{step}')")
                last = (dying if step == "updates" else there).client(NAMES[-1])
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_send, last, number)
                    await _until(lambda: place.rows("select 1 from pg_stat_activity where wait_event = 'PgSleep'"))
                    three.processes[killed].kill()
                place.rows("delete from pauses")
                began = time.monotonic()
                again = there.client(NAMES[-1])
                assert (await again.put(number, body_of(again, number))).status_code in (200, 201)
                answer = await clients[0].personalised(number, wait=20)
                assert answer.status_code == 200 and answer.content == wanted[number - 1]
                assert time.monotonic() - began < TAKEN_OVER_SECONDS
            three.processes[killed].start()
            three.processes[killed]._wait_until_ready()
        assert place.rows("select round from states order by round") == [(1,), (2,), (3,)]


async def _send(client: FakeClient, number: int) -> None:
    with suppress(httpx.TransportError):
        await client.put(number, body_of(client, number))


async def _until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not await anyio.to_thread.run_sync(condition):
            await anyio.sleep(0.02)


async def test_one_command_starts_workers_and_replaces_those_that_die(tmp_path: Path, place: Place) -> None:
    settings = {"method": METHOD, "database": place.url, "workers": 2}
    service = AggregatorProcess(tmp_path / "state", settings, log=tmp_path / "log")
    with service.running():
        asked = small_aggregator(tmp_path / "state", method=METHOD)
        async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=60) as http:
            federation = Federation(FastAPI(), http, asked, None)
            clients = await federation.begun(*NAMES)
            for client in clients[:3]:
                assert (await client.put(1, body_of(client, 1))).status_code == 201
        assert service.process is not None
        children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
        before = [int(pid) for pid in children.read_text().split() if b"spawn_main" in _command(int(pid))]
        assert len(before) == 2
        await _until(lambda: accepted(service.url) == [3.0] * 8)
        os.kill(before[0], signal.SIGKILL)
        async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=60) as http:
            federation = Federation(FastAPI(), http, asked, None)
            for client in [federation.client(name) for name in NAMES]:
                assert await _send_until_answered(client) in (200, 201)
            assert await federation.client(NAMES[0]).level(1, wait=30) == 3.5
        await _until(lambda: (tmp_path / "log").read_text().count("worker_ended"))
        await _until(lambda: accepted(service.url) == [6.0] * 8)


def accepted(url: str) -> list[float]:
    """Accepted updates by `/metrics`, over connections that the workers share."""
    texts = [httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text for _ in range(8)]
    series = 'lpsfed_aggregator_uploads_total{outcome="accepted"} '
    found = [line for text in texts for line in text.splitlines() if line.startswith(series)]
    return [float(line.rpartition(" ")[2]) for line in found]


async def _send_until_answered(client: FakeClient) -> int:
    """As a client does, whose connection the worker that was killed may have had."""
    with anyio.fail_after(30):
        while True:
            with suppress(httpx.TransportError):
                return int((await client.put(1, body_of(client, 1))).status_code)
            await anyio.sleep(0.05)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
