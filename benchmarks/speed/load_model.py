"""Load of one aggregator by many silos without training.

python -m benchmarks.speed.load_model [--clients 100] [--rounds 2] [--megabytes 1] [--json]
    [--database URL [--workers 2] [--kill-seconds 30]]
python -m benchmarks.speed.load_model --waiting 1000 [--seconds 60] [--json]

The aggregator is a process of its own with its state on the disk; the clients live in this one (load_clients.py),
each with a key, signed requests and real updates. Times of the aggregator are processor times, which the clients' own
work on the same machine hardly changes. With --workers they are those of all workers, each of which runs on a core of
its own, and the memory is that of the largest; the database is an empty one on PostgreSQL, whose own work is not in the
figures. With --kill-seconds a worker drawn at random is killed so often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import signal
import ssl
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
from tqdm import tqdm

from aggregator_service.settings import AggregatorSettings
from benchmarks.common import render_table
from benchmarks.speed.load_clients import LoadClient, LoadProgress, random_tensors
from benchmarks.speed.wrk import processor_seconds
from shared.method.settings import MethodSettings, method_settings
from shared.protocol.schemas import RunIn
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import new_key, public_pem
from shared.protocol.signing.requests import Signatory
from simulation.experiments.processes import HOST, free_ports, start_aggregator, stop_services, wait_until_ready

TOKEN = "the-load-model's-operator"  # of an aggregator that ends with this command
LOOK_SECONDS = 0.25
MEGABYTE = 1_000_000
CALL_SECONDS = 300.0


@dataclass(frozen=True)
class LoadPhase:
    """One part of the work of all clients.

    Seconds by the clock and of the aggregator's processor; peak MiB.
    """

    name: str
    seconds: float
    processor: float
    mib: int


@dataclass(frozen=True)
class LoadDeployment:
    """Database and worker processes of the aggregator, and seconds between two kills of a worker."""

    database: str | None = None
    workers: int = 1
    kill_seconds: float | None = None


@dataclass(frozen=True)
class LoadFigures:
    """Measurements of a run; `generator`: processor seconds of this process."""

    clients: int
    rounds: int
    update_bytes: int
    phases: tuple[LoadPhase, ...]
    generator: float
    disk_mib: int
    calls: dict[str, int]
    errors: dict[str, int]
    workers: int = 1
    killed: int = 0


@dataclass
class Watcher:
    """Sampler of the aggregator's process and of its workers."""

    pid: int
    samples: list[tuple[float, float, int]]
    killed: int = 0
    spent: dict[int, float] = field(default_factory=dict)  # processor seconds, also of workers that have ended

    async def sample_until_cancelled(self) -> None:
        """Samples until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(LOOK_SECONDS)

    def sample(self) -> None:
        """Samples the time, processor seconds so far, and MiB."""
        mib = 0
        for pid in (self.pid, *self.list_workers()):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                self.spent[pid] = processor_seconds(pid)
                mib = max(mib, resident_mib(pid))
        self.samples.append((time.monotonic(), sum(self.spent.values()), mib))

    def list_workers(self) -> list[int]:
        """Lists the processes of the workers; empty for an aggregator of one process."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        return [int(pid) for pid in children if is_worker(int(pid))]

    def pin_workers(self) -> None:
        """Binds each worker to a core of its own."""
        cores = sorted(os.sched_getaffinity(0))
        for number, pid in enumerate(self.list_workers()):
            os.sched_setaffinity(pid, {cores[number % len(cores)]})

    async def kill_until_cancelled(self, seconds: float) -> None:
        """Kills a worker drawn at random so often, until cancelled."""
        draw = random.Random(0)
        while True:
            await asyncio.sleep(seconds)
            self.sample()
            if workers := self.list_workers():
                os.kill(draw.choice(workers), signal.SIGKILL)
                self.killed += 1

    def phase(self, name: str, begin: float, end: float) -> LoadPhase:
        """Summarises the samples between two times."""
        times = [one[0] for one in self.samples]
        seen = self.samples[max(0, bisect_right(times, begin) - 1) : bisect_left(times, end) + 1]
        return LoadPhase(name, end - begin, seen[-1][1] - seen[0][1], max(one[2] for one in seen))


def is_worker(pid: int) -> bool:
    """Tells whether a child is a worker: others count resources of the parent."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def resident_mib(pid: int) -> int:
    """Returns the private memory of a process, without pages of files."""
    found = re.search(r"^RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    return 0 if found is None else int(found[1]) // 1024  # a process that has just ended has none


def sized_method(megabytes: float) -> MethodSettings:
    """Returns LPSFed with MLPs so wide that an update has about this size.

    It grows with the square of the width.
    """
    plain = method_settings()
    return method_settings(width=max(8, round(plain.width * math.sqrt(megabytes * MEGABYTE / (1.17e5)))))


def make_settings(
    folder: Path, method: MethodSettings, clients: int, deployment: LoadDeployment | None = None
) -> AggregatorSettings:
    """Returns an operator's settings for this many silos, with a connection for each."""
    return AggregatorSettings(
        state_directory=folder / "aggregator",
        operator_token=TOKEN,  # type: ignore[arg-type]
        keys_directory=folder / "registry",
        method=method,
        port=free_ports(1)[0],
        most_connections=2 * clients + 64,
        log_level="warning",
        **({} if deployment is None else {"database": deployment.database, "workers": deployment.workers}),
    )


def register_clients(folder: Path, count: int) -> list[Signatory]:
    """Creates a key pair per client and registers its public half."""
    registry = folder / "registry"
    registry.mkdir(parents=True, exist_ok=True)
    found = [Signatory(f"client-{number}", new_key()) for number in range(1, count + 1)]
    for one in found:
        public_file(one.name, registry).write_bytes(public_pem(one.key.public_key()))
    return found


@asynccontextmanager
async def serve_aggregator(settings: AggregatorSettings, log: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Watcher]]:
    """Runs the aggregator's process, with an operator's client and a watcher."""
    process = start_aggregator(settings, log)
    watcher = Watcher(process.pid, [])
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    url = f"http://{HOST}:{settings.port}"
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=CALL_SECONDS, trust_env=False) as operator:
            await wait_until_ready(operator, process)
            sampling = asyncio.create_task(watcher.sample_until_cancelled())
            yield operator, watcher
            sampling.cancel()
    finally:
        stop_services([process])


@asynccontextmanager
async def connect_each(url: str, count: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Opens a connection for each client: a shared pool is searched for each request."""
    plain = ssl.create_default_context()
    async with AsyncExitStack() as stack:
        ways = (
            httpx.AsyncClient(base_url=url, timeout=CALL_SECONDS, trust_env=False, verify=plain) for _ in range(count)
        )
        yield [await stack.enter_async_context(one) for one in ways]


async def measure_load(
    clients: int, rounds: int, megabytes: float, folder: Path, deployment: LoadDeployment | None = None
) -> LoadFigures:
    """Joins all clients, runs the rounds, and measures each part."""
    method = sized_method(megabytes)
    given = deployment or LoadDeployment()
    settings, signatories = make_settings(folder, method, clients, given), register_clients(folder, clients)
    declaration, progress = settings.declaration(), LoadProgress()
    tensors = random_tensors(declaration)
    own = time.process_time()
    async with (
        serve_aggregator(settings, folder / "aggregator.log") as (operator, watcher),
        connect_each(f"http://{HOST}:{settings.port}", clients) as ways,
    ):
        pairs = zip(signatories, ways, strict=True)
        crowd = [LoadClient(who, way, declaration, tensors, progress) for who, way in pairs]
        watcher.pin_workers()
        often = given.kill_seconds
        killing = None if often is None else asyncio.create_task(watcher.kill_until_cancelled(often))
        began = time.monotonic()
        await _show(progress, "join", clients, asyncio.gather(*(one.join() for one in crowd)))
        message = RunIn(rounds=rounds, clients=clients, method=method).model_dump_json()
        (await operator.post("/v1/runs", content=message)).raise_for_status()
        every = asyncio.gather(*(one.follow() for one in crowd))
        await _show(progress, f"answer {rounds}", clients, every)
        if killing is not None:
            killing.cancel()
        watcher.sample()
        phases = _phases(watcher, progress, rounds, began)
    size = sum(array.nbytes for array in tensors.values())
    disk = sum(path.stat().st_size for path in settings.state_directory.rglob("*") if path.is_file()) >> 20
    generator = time.process_time() - own
    calls, errors = dict(progress.calls), dict(progress.errors)
    return LoadFigures(clients, rounds, size, phases, generator, disk, calls, errors, given.workers, watcher.killed)


async def _show(progress: LoadProgress, until: str, clients: int, work: asyncio.Future[list[None]]) -> None:
    """Shows a progress bar while the clients work."""
    with tqdm(total=clients, desc=until, disable=None) as bar:
        while not work.done():
            bar.update(len(progress.marks.get(until, [])) - bar.n)
            await asyncio.wait([work], timeout=LOOK_SECONDS)
    await work


def _phases(watcher: Watcher, progress: LoadProgress, rounds: int, began: float) -> tuple[LoadPhase, ...]:
    """Returns the phases: joining, and updates, sum and answers of each round.

    Updates end with the last one, the sum with the first answer.
    """
    marks = progress.marks
    found, last = [watcher.phase("join", began, marks["join"][-1])], marks["join"][-1]
    for number in range(1, rounds + 1):
        updates, answers = marks[f"update {number}"], marks[f"answer {number}"]
        edges = (last, updates[-1], answers[0], answers[-1])
        names = (f"{what} {number}" for what in ("updates", "sum", "answers"))
        found += [watcher.phase(name, *pair) for name, pair in zip(names, pairwise(edges), strict=True)]
        last = answers[-1]
    return tuple(found)


def as_table(found: LoadFigures) -> str:
    """Renders a row per phase, with the cost per client."""
    rows = [
        [
            one.name,
            f"{one.seconds:.1f}",
            f"{one.processor:.1f}",
            f"{1000 * one.processor / found.clients:.2f}",
            f"{one.mib}",
        ]
        for one in found.phases
    ]
    return render_table(("phase", "s", "processor s", "processor ms a client", "MiB at most"), rows)


def describe(found: LoadFigures) -> Sequence[str]:
    """Describes the figures beside the table."""
    held = sum(one.seconds for one in found.phases[1:])
    return (
        f"{found.clients:,} clients, {found.rounds} rounds, updates of {found.update_bytes / MEGABYTE:.2f} MB: "
        f"{60 * found.rounds / held:.2f} rounds a minute, {found.disk_mib:,} MiB on the disk at the end",
        f"the clients' own work took {found.generator:.0f} s of the processor, the aggregator's "
        f"{sum(one.processor for one in found.phases):.0f} s",
        f"calls: {found.calls}; errors: {found.errors or 'none'}",
        *([f"{found.workers} workers, {found.killed} times one was killed"] if found.workers > 1 else []),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=1.0, help="of one update")
    parser.add_argument(
        "--folder", type=Path, help="on a disk with room for twice a round's updates; else a temporary one"
    )
    parser.add_argument("--waiting", type=int, help="measure so many clients that wait, by polls and by streams")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which they wait")
    parser.add_argument("--database", help="URL of an empty PostgreSQL database")
    parser.add_argument("--workers", type=int, default=1, help="processes of the aggregator, with --database")
    parser.add_argument("--kill-seconds", type=float, help="seconds between two kills of a worker")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if given.waiting is not None:
            from benchmarks.speed import waiting_clients  # it starts aggregators by this module

            told = asyncio.run(waiting_clients.measure_waiting(given.waiting, given.seconds, Path(folder)))
            print(waiting_clients.as_json(told) if given.json else waiting_clients.waiting_table(told))
            return
        deployment = LoadDeployment(given.database, given.workers, given.kill_seconds)
        found = asyncio.run(measure_load(given.clients, given.rounds, given.megabytes, Path(folder), deployment))
    if given.json:
        print(json.dumps(asdict(found)))
        return
    print("\n".join((*describe(found), "", as_table(found))))


if __name__ == "__main__":
    sys.exit(main())
