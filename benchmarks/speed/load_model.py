"""Load of one aggregator by many silos without training.

python -m benchmarks.speed.load_model [--clients 100] [--rounds 2] [--megabytes 1] [--json] [--way polls]
    [--generators 1] [--at-once 64] [--against COMMIT] [--database URL [--workers 2] [--kill-seconds 30]]
python -m benchmarks.speed.load_model --waiting 1000 [--way streams] [--seconds 60] [--json]

The aggregator is a process of its own with its state on the disk; the clients live in other ones (load_clients.py),
each with a key, signed requests and real updates. Times of the aggregator are processor times, which the clients' own
work on the same machine hardly changes. With --against it is that of another commit, to which the same clients talk.
With --workers times are those of all workers, each of which runs on a core of its own, and the memory is that of the
largest; the database is an empty one on PostgreSQL, whose processor time is told by itself where it runs on this
machine. With --worker-cores each may use so much of a core: so workers share a machine with PostgreSQL and the clients
and are still what limits the load. With --kill-seconds a worker drawn at random is killed so often. A soak of many
rounds tells whether memory grows, by its mean in the first and the last quarter of the rounds, and how many
acknowledged updates have no row.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
from sqlalchemy import URL, create_engine, inspect, text
from sqlalchemy import Connection as SQLConnection
from tqdm import tqdm

from aggregator_service.settings import AggregatorSettings
from aggregator_service.storage.engines.sqlite import NAME as SQLITE
from benchmarks.common import render_table
from benchmarks.compare_commits.trees import Tree, commit_tree
from benchmarks.speed.load_clients import SCALARS, CrowdPlan, LoadProgress, Way, random_tensors, run_crowd
from benchmarks.speed.wrk import processor_seconds
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.protocol.wire import encode_body
from simulation.experiments.processes import start_aggregator, stop_services, wait_until_ready
from simulation.ports import HOST, free_ports

TOKEN = "the-load-model's-operator"  # of an aggregator that ends with this command
WAYS = ("streams", "polls")  # of waiting
LOOK_SECONDS = 0.25
GROUPS = Path("/sys/fs/cgroup")  # of processes, whose use of processors Linux limits
PERIOD = 20_000  # microseconds over which it does
MEGABYTE = 1_000_000
CALL_SECONDS = 300.0
STOP_SECONDS = 10.0
FILES_BESIDE = 256
LOGS = ("-wal", "-shm")
REPOSITORY = Path(__file__).parents[2]


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
    """Database and worker processes of the aggregator, and seconds between two kills of a worker.

    tree: files of another commit, whose aggregator runs. worker_cores: part of a core that each worker may use.
    """

    database: str | None = None
    workers: int = 1
    kill_seconds: float | None = None
    tree: Tree | None = None
    worker_cores: float | None = None


@dataclass(frozen=True)
class LoadPlan:
    """Clients with their rounds and updates; `generators`: processes in which they live.

    way: in which they wait. at_once: calls under way at a time, of all clients of a process.
    """

    clients: int
    rounds: int
    megabytes: float
    way: Way = "streams"
    generators: int = 1
    at_once: int = 64
    deadline_seconds: float = 6 * 3600.0
    deployment: LoadDeployment = LoadDeployment()


@dataclass(frozen=True)
class LoadFigures:
    """Measurements of a run; `generator`: processor seconds of the clients.

    sent, received: bytes of the clients' calls, their answers and streams, after joining. rows, disk: rows and bytes
    that the aggregator has stored since. quarters: mean MiB in the first and the last quarter of the rounds. lost:
    acknowledged updates without a row of their bytes. server: processor seconds of PostgreSQL, None elsewhere.
    """

    clients: int
    rounds: int
    update_bytes: int
    way: str
    phases: tuple[LoadPhase, ...]
    generator: float
    sent: int
    received: int
    rows: int
    disk: int
    calls: dict[str, int]
    errors: dict[str, int]
    workers: int = 1
    killed: int = 0
    quarters: tuple[float, float] = (0.0, 0.0)
    lost: int = 0
    server: float | None = None

    @property
    def uploads_a_second(self) -> float:
        """Updates a second by the clock, while they come."""
        return self.clients * self.rounds / sum(one.seconds for one in self.phases if one.name.startswith("updates"))

    @property
    def processor(self) -> float:
        """Processor milliseconds of the aggregator for a client and round."""
        return self.each(1000 * sum(one.processor for one in self.phases[1:]))

    @property
    def minutes(self) -> float:
        """Minutes of all rounds."""
        return sum(one.seconds for one in self.phases[1:]) / 60

    def each(self, amount: float) -> float:
        """Returns the part of an amount for a client and round."""
        return amount / (self.clients * self.rounds)


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

    @contextmanager
    def limit_workers(self, cores: float | None) -> Iterator[None]:
        """Limits each worker to a part of a core, by Linux's control groups, as root."""
        made = list[Path]()
        try:
            for pid in () if cores is None else self.list_workers() or [self.pid]:
                quota, first = round(PERIOD * (cores or 1)), (GROUPS / "cpu").is_dir()  # version 1 of control groups
                group = (GROUPS / "cpu" if first else GROUPS) / f"lpsfed-worker-{pid}"
                group.mkdir()
                made.append(group)
                of_first = {"cpu.cfs_period_us": PERIOD, "cpu.cfs_quota_us": quota}
                limits = of_first if first else {"cpu.max": f"{quota} {PERIOD}"}
                for name, limit in {**limits, "cgroup.procs": pid}.items():
                    (group / name).write_text(str(limit), encoding="ascii")
            yield
        finally:
            for group in made:
                for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
                    (group.parent / "cgroup.procs").write_text(pid, encoding="ascii")
                group.rmdir()

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

    def mean_mib(self, begin: float, end: float) -> float:
        """Returns the mean MiB between two times."""
        times = [one[0] for one in self.samples]
        seen = self.samples[bisect_left(times, begin) : bisect_right(times, end)] or self.samples[-1:]
        return sum(one[2] for one in seen) / len(seen)


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
    folder: Path, method: MethodSettings, clients: int, deployment: LoadDeployment = LoadDeployment()
) -> AggregatorSettings:
    """Returns an operator's settings for this many silos, with a connection for each."""
    shared = deployment.database
    return AggregatorSettings(
        state_directory=folder / "aggregator",
        operator_token=TOKEN,  # type: ignore[arg-type]
        keys_directory=folder / "registry",
        method=method,
        port=free_ports(1)[0],
        most_connections=(2 * clients + 64) * deployment.workers,
        log_level="warning",
        **({} if shared is None else {"database": shared, "workers": deployment.workers}),
    )


@asynccontextmanager
async def serve_aggregator(
    settings: AggregatorSettings, log: Path, tree: Tree | None = None, worker_cores: float | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, Watcher]]:
    """Runs the aggregator's process, with an operator's client and a watcher.

    tree: files of the aggregator; by default those of this one.
    """
    process = start_aggregator(settings, log, None if tree is None else tree.folder)
    watcher = Watcher(process.pid, [])
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    url = f"http://{HOST}:{settings.port}"
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=CALL_SECONDS, trust_env=False) as operator:
            await wait_until_ready(operator, process)
            sampling = asyncio.create_task(watcher.sample_until_cancelled())
            with watcher.limit_workers(worker_cores):
                yield operator, watcher
            sampling.cancel()
    finally:
        stop_services([process])


async def measure_load(load: LoadPlan, folder: Path) -> LoadFigures:
    """Joins all clients, runs the rounds, and measures each part."""
    settings = make_settings(folder, sized_method(load.megabytes), load.clients, load.deployment)
    raise_file_limit(load.clients + load.generators * load.at_once + FILES_BESIDE)
    progress, given = LoadProgress(), load.deployment
    log, limit = folder / "aggregator.log", given.worker_cores
    async with serve_aggregator(settings, log, given.tree, limit) as (operator, watcher):
        declared = (await operator.get("/v1/declaration")).raise_for_status().json()
        tensors = random_tensors(Declaration.model_validate(declared))
        update = encode_body(Parameters(dict(tensors), SCALARS))
        port, crowds = settings.port, _split(load.clients, load.generators)
        same = settings.registry, declared, update, load.way, load.at_once
        plans = [CrowdPlan(numbers, port, *same) for numbers in crowds]
        async with run_crowds(plans) as pipes:
            if given.worker_cores is None:
                watcher.pin_workers()
            often = given.kill_seconds
            killing = None if often is None else asyncio.create_task(watcher.kill_until_cancelled(often))
            began = time.monotonic()
            server = server_seconds(settings)
            await _gather_reports(pipes, progress, "join", load.clients)
            joined, rows = replace(progress), count_rows(settings)
            disk = stored_bytes(settings)
            message = {"rounds": load.rounds, "clients": load.clients, "deadline_seconds": load.deadline_seconds}
            begun = time.monotonic()
            (await operator.post("/v1/runs", json=message)).raise_for_status()
            for pipe in pipes:
                pipe.send("follow")
            await _gather_reports(pipes, progress, f"answer {load.rounds}", load.clients)
            if killing is not None:
                killing.cancel()
            watcher.sample()
            phases, added = _phases(watcher, progress, load.rounds, (began, begun)), count_rows(settings) - rows
            held, spent = count_updates(settings, hashlib.sha256(update).hexdigest()), server_seconds(settings)
    return LoadFigures(
        clients=load.clients,
        rounds=load.rounds,
        update_bytes=sum(array.nbytes for array in tensors.values()),
        way=load.way,
        phases=phases,
        generator=progress.processor,
        sent=progress.sent - joined.sent,
        received=progress.received - joined.received,
        rows=added,
        disk=stored_bytes(settings) - disk,
        calls=dict(progress.calls),
        errors=dict(progress.errors),
        workers=given.workers,
        killed=watcher.killed,
        quarters=_quarters(watcher, progress, load.rounds),
        lost=sum(len(progress.marks[f"update {number}"]) for number in range(1, load.rounds + 1)) - held,
        server=None if server is None or spent is None else spent - server,
    )


def raise_file_limit(files: int) -> None:
    """Raises this process's limit of open files, which its children inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and files > hard:
        raise SystemExit(f"expected fewer clients than {hard:,} open files allow, got {files:,} files: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def _split(clients: int, parts: int) -> list[range]:
    """Splits the numbers of the clients among processes."""
    edges = [1 + clients * part // parts for part in range(parts + 1)]
    return [range(*pair) for pair in pairwise(edges)]


@asynccontextmanager
async def run_crowds(plans: Sequence[CrowdPlan]) -> AsyncIterator[list[Connection]]:
    """Runs the processes of the clients, and yields a pipe to each."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in plans]
    started = [
        context.Process(target=run_crowd, args=(plan, theirs), daemon=True)
        for plan, (_, theirs) in zip(plans, pairs, strict=True)
    ]
    for one, (_, theirs) in zip(started, pairs, strict=True):
        one.start()
        theirs.close()  # so that the end of the process is the end of the pipe
    try:
        yield [ours for ours, _ in pairs]
    finally:
        for one in started:
            one.join(STOP_SECONDS)
            one.kill()


async def _gather_reports(pipes: Sequence[Connection], progress: LoadProgress, until: str, clients: int) -> None:
    """Adds up the processes' reports until all clients have done something.

    Shows a progress bar.
    """
    working = set(pipes)  # of which the last report, None, has not come
    with tqdm(total=clients, desc=until, disable=None) as bar:
        while bar.n < clients:
            for pipe in pipes:
                while pipe in working and pipe.poll():
                    try:
                        found = pipe.recv()
                    except EOFError:
                        raise RuntimeError("expected clients that take part, a process of them has ended") from None
                    if found is None:
                        working.remove(pipe)
                    else:
                        progress.add(found)
            bar.n = len(progress.marks.get(until, []))
            bar.refresh()
            await asyncio.sleep(LOOK_SECONDS)


@contextmanager
def open_database(settings: AggregatorSettings) -> Iterator[SQLConnection]:
    """Opens the aggregator's database, which does not hold the nonces of one process."""
    url = settings.database_url() or URL.create("sqlite", database=str(settings.state_directory / SQLITE))
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def count_rows(settings: AggregatorSettings) -> int:
    """Counts the rows of the aggregator's database."""
    with open_database(settings) as connection:
        names = inspect(connection).get_table_names()
        return sum(connection.execute(text(f'SELECT count(*) FROM "{name}"')).scalar_one() for name in names)


def count_updates(settings: AggregatorSettings, digest: str) -> int:
    """Counts the stored updates with these bytes."""
    with open_database(settings) as connection:
        counted = text("SELECT count(*) FROM updates WHERE digest = :digest")
        return int(connection.execute(counted, {"digest": digest}).scalar_one())


def server_seconds(settings: AggregatorSettings) -> float | None:
    """Returns the processor seconds of PostgreSQL so far; None without one on this machine."""
    if settings.database is None:
        return None
    with open_database(settings) as connection:
        session = int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        try:
            server = int(_process_fields(session)[1])
            children = Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split()
        except FileNotFoundError:
            return None
        ended = sum(map(int, _process_fields(server)[11:15]))  # its own, and that of sessions that have ended
        running = 0
        for pid in children:
            with suppress(FileNotFoundError, ProcessLookupError):
                running += sum(map(int, _process_fields(int(pid))[11:13]))
        return (ended + running) / os.sysconf("SC_CLK_TCK")


def _process_fields(pid: int) -> list[str]:
    """Returns the fields of a process's status behind its name."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def stored_bytes(settings: AggregatorSettings) -> int:
    """Returns the bytes of the aggregator's files, without the databases' logs, which come and go."""
    total = 0
    for path in settings.state_directory.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() and not path.name.endswith(LOGS) else 0
    return total


def _phases(watcher: Watcher, progress: LoadProgress, rounds: int, began: tuple[float, float]) -> tuple[LoadPhase, ...]:
    """Returns the phases: joining, and updates, sum and answers of each round.

    began: times at which joining and the run began. Updates end with the last one, the sum with the first answer.
    """
    marks = progress.marks
    found, last = [watcher.phase("join", began[0], marks["join"][-1])], began[1]
    for number in range(1, rounds + 1):
        updates, answers = marks[f"update {number}"], marks[f"answer {number}"]
        edges = (last, updates[-1], answers[0], answers[-1])
        names = (f"{what} {number}" for what in ("updates", "sum", "answers"))
        found += [watcher.phase(name, *pair) for name, pair in zip(names, pairwise(edges), strict=True)]
        last = answers[-1]
    return tuple(found)


def _quarters(watcher: Watcher, progress: LoadProgress, rounds: int) -> tuple[float, float]:
    """Returns the mean MiB in the first and the last quarter of the rounds."""
    part, ends = max(1, rounds // 4), [max(progress.marks[f"answer {number}"]) for number in range(1, rounds + 1)]
    begin = max(progress.marks["join"])
    later = ends[-part - 1] if rounds > part else begin
    return watcher.mean_mib(begin, ends[part - 1]), watcher.mean_mib(later, ends[-1])


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
    return (
        f"{found.clients:,} clients by {found.way}, {found.rounds} rounds, updates of "
        f"{found.update_bytes / MEGABYTE:.2f} MB: {found.rounds / found.minutes:.2f} rounds a minute, "
        f"{max(one.mib for one in found.phases)} MiB at most",
        f"a client and round: {found.processor:.2f} ms of the aggregator's processor, "
        f"{found.each(found.sent):,.0f} bytes sent, {found.each(found.received):,.0f} received, "
        f"{found.each(found.rows):.2f} rows and {found.each(found.disk):,.0f} bytes stored",
        f"the clients' own work took {found.generator:.0f} s of the processor, the aggregator's "
        f"{sum(one.processor for one in found.phases):.0f} s",
        f"calls: {found.calls}; errors: {found.errors or 'none'}",
        f"{found.uploads_a_second:.0f} updates a second, {found.lost} of the acknowledged ones lost; mean memory "
        f"{found.quarters[0]:.0f} MiB in the first quarter of the rounds, {found.quarters[1]:.0f} in the last",
        *([f"PostgreSQL took {found.server:.0f} s of the processor"] if found.server is not None else []),
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
    parser.add_argument("--worker-cores", type=float, help="part of a core that each worker may use, by Linux, as root")
    parser.add_argument("--kill-seconds", type=float, help="seconds between two kills of a worker")
    parser.add_argument("--way", choices=WAYS, help="in which clients wait; else by streams, with --waiting by both")
    parser.add_argument("--generators", type=int, default=1, help="processes of clients")
    parser.add_argument("--at-once", type=int, default=64, help="calls under way at a time, for each of them")
    parser.add_argument("--against", metavar="COMMIT", help="whose aggregator runs; before streams: --way polls")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.worker_cores is not None and given.kill_seconds is not None:
        parser.error("expected one of --worker-cores and --kill-seconds: a successor of a killed worker has no limit")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if given.waiting is not None:
            from benchmarks.speed import waiting_clients  # it starts aggregators by this module

            ways = WAYS if given.way is None else (given.way,)
            told = asyncio.run(waiting_clients.measure_waiting(given.waiting, ways, given.seconds, Path(folder)))
            print(waiting_clients.as_json(told) if given.json else waiting_clients.waiting_table(told))
            return
        tree = None if given.against is None else commit_tree(REPOSITORY, given.against, Path(folder) / "tree")
        deployment = LoadDeployment(given.database, given.workers, given.kill_seconds, tree, given.worker_cores)
        sizes = given.clients, given.rounds, given.megabytes
        load = LoadPlan(*sizes, given.way or WAYS[0], given.generators, given.at_once, deployment=deployment)
        found = asyncio.run(measure_load(load, Path(folder)))
    if given.json:
        more = {"processor": found.processor, "minutes": found.minutes, "uploads_a_second": found.uploads_a_second}
        print(json.dumps(asdict(found) | more))
        return
    print("\n".join((*describe(found), "", as_table(found))))


if __name__ == "__main__":
    sys.exit(main())
