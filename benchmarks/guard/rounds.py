"""The aggregator's part of a round: bodies stored, checked, aggregated and answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from aggregator_service.aggregation.computation import aggregate_round, personalised_body
from aggregator_service.rounds.run import Run, save_run
from aggregator_service.rounds.uploads import read_scalars
from aggregator_service.storage.clients import add_client
from aggregator_service.storage.database import Database
from aggregator_service.storage.disk import Blobs
from aggregator_service.storage.locations import Archive
from aggregator_service.storage.records import JoinedClient, Receipt, StoredUpdate
from aggregator_service.storage.run_store import add_state, add_updates
from benchmarks.guard.measuring import PreparedWork, Preparing, TimedWork, hashing
from benchmarks.guard.silo import MIB, GeneratedSilo
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from shared.protocol.wire import body_pieces
from shared.strategies import build_strategy

CLIENTS = tuple(f"client-{number}" for number in range(1, 5))
SCALARS = {"margin": 0.1, "rho": 0.1}
LARGE = MethodSettings(width=512, layers=8)  # two MLPs with as many parameters as an update of 13 MiB holds
HASHED, UPDATE = "16 MB hashed", "an update"


@asynccontextmanager
async def prepare_round(silo: GeneratedSilo, folder: Path) -> Preparing:
    """Prepares first rounds of separate runs, with the same update of all clients.

    Their files are removed afterwards.
    """
    del silo
    declaration = build_strategy("lpsfed", LARGE).declaration(LARGE)
    update = Parameters({spec.name: np.ones(spec.shape, np.float32) for spec in declaration.tensors}, SCALARS)
    numbers, size = count(1), sum(array.nbytes for array in update.arrays.values())
    with open_archive(folder / "aggregator", declaration, 2 * size) as archive:

        async def work() -> None:
            run_round_once(archive, f"run-{next(numbers)}", update, LARGE)

        timed = TimedWork("round of 4 clients", work, hashing(), HASHED, repetitions=10)
        yield PreparedWork((timed,), size / MIB, UPDATE)


@contextmanager
def open_archive(
    folder: Path, declaration: Declaration, longest: int, clients: Sequence[str] = CLIENTS
) -> Iterator[Archive]:
    """Opens an aggregator's database with joined clients, and its files."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(Database(folder, declaration)) as database:
        for client in clients:
            add_client(database, JoinedClient(client, None, 0.0), declaration=declaration)
        yield Archive(database, Blobs(folder / "blobs", database.disk), declaration, longest, 1)


def run_round_once(
    archive: Archive, name: str, update: Parameters, method: MethodSettings, clients: Sequence[str] = CLIENTS
) -> None:
    """Takes an update of each client, aggregates them and makes every answer."""
    request = RunIn(rounds=1, clients=len(clients), method=method)
    run = Run(name, request, 0.0, 1.0, dict.fromkeys(clients, 1), phase="open", round=1)
    save_run(archive.database, run, sequence=1)
    for client in clients:
        _take_update(archive, name, client, update)
    state = aggregate_round(archive, run)
    with archive.database.writing() as connection:
        add_state(connection, state=state)
    for client in clients:
        personalised_body(archive, run, number=1, client=client).close()
    archive.blobs.keep_only(())


def _take_update(archive: Archive, run: str, client: str, update: Parameters) -> None:
    blob = archive.blobs.save(body_pieces(update))
    scalars = read_scalars(archive.declaration, archive.blobs.path(blob.name))
    receipt = Receipt(run, 1, client, blob.digest, blob.size, 0.0)
    with archive.database.writing() as connection:
        add_updates(connection, stored=[StoredUpdate(receipt, scalars, blob.name)])
