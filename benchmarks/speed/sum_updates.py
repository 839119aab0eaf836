"""Check and sum of a round's updates by one or several workers.

python -m benchmarks.speed.sum_updates [--updates 100] [--megabytes 1] [--workers 1] [--rule mean] [--linked 0] [--json]
    [--database URL] [--bucket s3://BUCKET/PREFIX]

The updates lie in a folder as the aggregator stores them, each with a receipt. The worker that leads checks every body
and sums all; with --workers others take blocks of both. They share an empty database on PostgreSQL, whose own work is
not in the figures. Afterwards one thread computes the plain sum of all updates, tensor by tensor, and the bytes are
compared. Times of a worker are processor times of its process while the round is worked on, and the memory is its
peak. With --linked so many bodies are written, and all others are further names of these. With --bucket, an empty
place in the store that the AWS variables name, all bodies lie there and no worker has a copy, though in a federation
each has those that it received.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from sqlalchemy import URL, insert

from aggregator_service.aggregation import computation
from aggregator_service.rounds.run import Run, save_run
from aggregator_service.storage.body_parts import PartDigests
from aggregator_service.storage.database import Database
from aggregator_service.storage.disk import WHOLE, Blob, Blobs, Disk
from aggregator_service.storage.engines.postgresql import read_url
from aggregator_service.storage.locations import Archive
from aggregator_service.storage.objects import Bucket, BucketBlobs, read_place
from aggregator_service.storage.tables import CLIENTS, UPDATES
from benchmarks.common import render_table
from benchmarks.speed.load_model import sized_method
from benchmarks.speed.wrk import processor_seconds
from shared.errors import SettingsError
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters, State, Update, digest_arrays
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from shared.protocol.wire import encode_body, open_parameters
from shared.strategies import build_strategy

SPAWN = multiprocessing.get_context("spawn")
SCALARS = {"margin": 0.1, "rho": 0.1}
LOOK_SECONDS = 0.02
RUN = "run-1"


@dataclass(frozen=True)
class SumWorkerFigures:
    """Measurements of one worker: processor seconds, peak MiB of private memory, blocks."""

    processor: float
    mib: int
    blocks: int


@dataclass(frozen=True)
class SumFigures:
    """Measurements of a round.

    Seconds by the clock; identical: whether the bytes are those of the plain sum.
    """

    updates: int
    linked: int
    update_bytes: int
    rule: str
    check_seconds: float
    sum_seconds: float
    workers: tuple[SumWorkerFigures, ...]
    plain_seconds: float
    identical: bool


@dataclass(frozen=True)
class MeasuredRound:
    """Round to sum: its database and folders, and how its updates are combined."""

    folder: str
    url: URL | None
    method: MethodSettings
    updates: int
    bucket: str | None = None

    @property
    def declaration(self) -> Declaration:
        return build_strategy("lpsfed", self.method).declaration(self.method)

    @property
    def clients(self) -> list[str]:
        return [f"client-{number:06}" for number in range(self.updates)]

    @property
    def run(self) -> Run:
        request = RunIn(rounds=1, clients=self.updates, method=self.method, deadline_seconds=3600.0)
        return Run(RUN, request, 0.0, 3600.0, dict.fromkeys(self.clients, 1), phase="aggregated", round=1)

    @contextmanager
    def open(self, worker: str) -> Iterator[Archive]:
        """Opens the storage for one worker."""
        state = Path(self.folder, worker)
        state.mkdir(exist_ok=True)
        with closing(Database(state, self.declaration, self.url, shared=self.url is not None)) as database:
            yield Archive(database, self._open_blobs(state, database.disk), self.declaration, 1 << 40, 1)

    def _open_blobs(self, state: Path, disk: Disk) -> Blobs:
        if self.bucket is None:
            return Blobs(Path(self.folder, "bodies"), disk)
        bucket = Bucket(read_place(self.bucket))
        return BucketBlobs(state / "blobs", disk, bucket, owner="benchmark", may_hold=True, most=1 << 40)


def write_updates(given: MeasuredRound, bodies: int) -> tuple[int, Path]:
    """Writes bodies and rows; returns the bytes of an update and a folder.

    The folder has a name for each client's body.
    bodies: number of different ones; the rest are further names of these.
    """
    rng, rows, size = np.random.default_rng(0), [], 0
    by_client = Path(given.folder, "by-client")
    by_client.mkdir()
    with given.open("worker-0") as archive, archive.database.engine.turn():
        made: list[Blob] = []
        for number, client in enumerate(given.clients):
            if number < bodies:
                arrays = {
                    spec.name: rng.standard_normal(spec.shape, dtype=np.float32) for spec in given.declaration.tensors
                }
                body, parts = encode_body(Parameters(arrays, SCALARS)), PartDigests()
                parts.update(body)
                made.append(replace(archive.blobs.save([body]), parts=parts.finish()))
            blob = made[number % bodies]
            size, name = blob.size, blob.name
            if number >= bodies and given.bucket is None:
                name = f"{number:032x}{WHOLE}"
                os.link(archive.blobs.path(blob.name), archive.blobs.path(name))
            os.link(archive.blobs.path(name), by_client / client)
            row = {"run": RUN, "round": 1, "client": client, "digest": blob.digest, "size": size}
            stored = {"blob": name, "parts": None if given.bucket is None else blob.parts}
            rows.append(row | {"received_at": 0.0, "scalars": SCALARS} | stored)
        if given.bucket is not None:
            for blob in made:
                archive.blobs.discard(blob)
        joined = {"declaration": given.declaration.model_dump(mode="json"), "counts": None, "joined_at": 0.0}
        with archive.database.writing() as connection:
            connection.execute(insert(CLIENTS), [joined | {"name": client} for client in given.clients])
        save_run(archive.database, given.run, sequence=1)
        with archive.database.writing() as connection:
            connection.execute(insert(UPDATES), rows)
    return size, by_client


def lead_sum(given: MeasuredRound, line: Connection) -> None:
    """Checks and sums the round at the worker that leads; sends its figures."""
    with given.open("worker-0") as archive:
        if archive.database.workers is not None:
            archive.database.workers.lead()
        line.send("ready")
        line.recv()
        before, began = processor_seconds(os.getpid()), time.monotonic()
        if computation.damaged_updates(archive, given.run):
            raise RuntimeError("expected sound updates, got damaged ones")
        checked = time.monotonic()
        state = computation.aggregate_round(archive, given.run)
        ended = time.monotonic()
        spent = processor_seconds(os.getpid()) - before
        digest = digest_arrays(open_parameters(archive.blobs.path(str(state.blob)))[1].arrays)
        line.send((checked - began, ended - checked, spent, peak_mib(), digest))


def join_sum(given: MeasuredRound, number: int, line: Connection) -> None:
    """Takes blocks of the round at another worker, until it is told to end."""
    with given.open(f"worker-{number}") as archive:
        line.send("ready")
        line.recv()
        before, blocks = processor_seconds(os.getpid()), 0
        while not line.poll(LOOK_SECONDS):
            take_block = computation.join_shared_sum(archive)
            while take_block is not None and take_block():
                blocks += 1
        line.send((processor_seconds(os.getpid()) - before, peak_mib(), blocks))


def peak_mib() -> int:
    """Returns the peak of this process's memory in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))


def sum_plainly(given: MeasuredRound, by_client: Path) -> tuple[str, float]:
    """Computes the digest of the sum of whole updates in one thread, and its seconds."""
    began = time.monotonic()
    updates = [
        Update(client, (read := open_parameters(by_client / client)[1]).arrays, read.scalars)
        for client in given.clients
    ]
    strategy = build_strategy("lpsfed", given.method)
    start = State(strategy.start(given.method, given.run.request.seed))
    found = strategy.aggregate(start, updates)
    return digest_arrays(found.arrays), time.monotonic() - began


def measure_sum(
    updates: int,
    megabytes: float,
    workers: int,
    rule: str,
    *,
    linked: int = 0,
    url: str | None = None,
    bucket: str | None = None,
) -> SumFigures:
    """Sums one round of generated updates by some workers."""
    if workers > 1 and url is None:
        raise SettingsError("database: expected the URL of an empty one, which several workers share, got none")
    method = sized_method(megabytes).model_copy(update={"aggregate": rule, "tolerated": int(rule == "trimmed_mean")})
    with tempfile.TemporaryDirectory(prefix="sum-") as folder:
        given = MeasuredRound(folder, None if url is None else read_url(url), method, updates, bucket)
        size, by_client = write_updates(given, linked or updates)
        checked, summed, digest, figures = _run_workers(given, workers)
        plain, seconds = sum_plainly(given, by_client)
    return SumFigures(updates, linked, size, rule, checked, summed, figures, seconds, identical=digest == plain)


def _run_workers(given: MeasuredRound, workers: int) -> tuple[float, float, str, tuple[SumWorkerFigures, ...]]:
    lines, processes = [], []
    for number in range(workers):
        line, theirs = SPAWN.Pipe()
        arguments = (given, theirs) if number == 0 else (given, number, theirs)
        process = SPAWN.Process(target=lead_sum if number == 0 else join_sum, args=arguments, daemon=True)
        process.start()
        theirs.close()
        lines.append(line)
        processes.append(process)
    for line in lines:
        line.recv()
    for line in lines:
        line.send("begin")
    checked, summed, spent, mib, digest = lines[0].recv()
    told = []
    for line in lines[1:]:
        line.send("end")
        told.append(line.recv())
    for process in processes:
        process.join()
    others = tuple(SumWorkerFigures(round(spent, 2), mib, blocks) for spent, mib, blocks in told)
    return checked, summed, digest, (SumWorkerFigures(round(spent, 2), mib, 0), *others)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rule", choices=("mean", "median", "trimmed_mean"), default="mean")
    parser.add_argument("--linked", type=int, default=0)
    parser.add_argument("--database")
    parser.add_argument("--bucket")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    figures = measure_sum(
        given.updates,
        given.megabytes,
        given.workers,
        given.rule,
        linked=given.linked,
        url=given.database,
        bucket=given.bucket,
    )
    if given.json:
        print(json.dumps(asdict(figures), indent=2))
        return
    same = "the bytes of the plain sum" if figures.identical else "OTHER BYTES than the plain sum"
    print(
        f"{figures.updates:,} updates of {figures.update_bytes:,} bytes, {figures.rule}: checked in"
        f" {figures.check_seconds:.1f} s, summed in {figures.sum_seconds:.1f} s, {same}"
        f" (which took {figures.plain_seconds:.1f} s)\n"
    )
    rows = [[str(number), f"{one.processor:.1f}", str(one.mib)] for number, one in enumerate(figures.workers)]
    print(render_table(["worker", "processor s", "peak MiB"], rows))


if __name__ == "__main__":
    main()
