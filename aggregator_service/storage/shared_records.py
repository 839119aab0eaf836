"""Receipts and arrivals of one of several workers, many in one transaction.

Each row is durable before its request is answered. Receipts share the lock of the turn, so that they come wholly before
or wholly after a transition, and count only for the state that their worker knew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aggregator_service.storage.database import Database
from aggregator_service.storage.disk import LostCommitError
from aggregator_service.storage.engines.pipelined_session import Statement
from aggregator_service.storage.engines.shared_postgresql import (
    BESIDE_ARRIVALS,
    BESIDE_TRANSITIONS,
    NUMBER,
    SharedPostgreSQL,
)
from aggregator_service.storage.records import Arrival, StoredUpdate
from aggregator_service.storage.write_batches import WriteBatches, in_own_thread
from shared.errors import UnavailableError

# A batch is one parameter: as an array for each column it took the driver five times as long.
RECEIPTS = (
    "INSERT INTO updates (run, round, client, digest, size, received_at, scalars, blob, parts)"
    " SELECT run, round, client, digest, size, received_at, scalars, blob, decode(parts, 'hex')"
    " FROM json_to_recordset(%(rows)s::json) AS given(run text, round bigint, client text, digest text, size bigint,"
    " received_at float8, scalars json, blob text, parts text, number bigint)"
    " WHERE number = (SELECT number FROM turns) ON CONFLICT DO NOTHING RETURNING run, round, client, blob"
)
ARRIVALS = (
    "INSERT INTO arrivals (time, client, call, run, round, size, digest, status, nonce, head)"
    " SELECT time, client, call, run, round, size, digest, status, nonce, head"
    " FROM json_to_recordset(%(rows)s::json) AS given(time float8, client text, call text, run text, round bigint,"
    " size bigint, digest text, status bigint, nonce text, head json)"
)
GATHER_SECONDS = 0.02  # in which the rows of a busy worker are gathered


@dataclass(frozen=True)
class GivenReceipt:
    """Accepted update for the shared state of a number."""

    update: StoredUpdate
    number: int

    @property
    def order(self) -> tuple[str, int, str]:
        """Order in which all workers add receipts: otherwise two could block each other."""
        one = self.update.receipt
        return one.run, one.round, one.client

    def row(self) -> dict[str, Any]:
        one = self.update
        parts = None if one.parts is None else one.parts.hex()
        stored = {"scalars": dict(one.scalars), "blob": one.blob, "parts": parts}
        return vars(one.receipt) | stored | {"number": self.number}


@dataclass(frozen=True)
class GivenArrival:
    """Accepted request with its time."""

    arrival: Arrival
    time: float

    def row(self) -> dict[str, Any]:
        return vars(self.arrival) | {"time": self.time}


@dataclass(frozen=True)
class Recorded:
    """Outcome of a write; `number`: of the shared state that it saw."""

    added: bool
    number: int


Given = GivenReceipt | GivenArrival


class SharedRecords:
    """Writer of receipts and of accepted arrivals."""

    def __init__(self, database: Database, workers: SharedPostgreSQL) -> None:
        self._database, self._workers = database, workers
        self._session = workers.open_session()
        self._batches: WriteBatches[Given, Recorded] = WriteBatches(
            in_own_thread(self._store), gather_seconds=GATHER_SECONDS
        )

    async def add_receipt(self, update: StoredUpdate, *, number: int) -> Recorded:
        """Adds an accepted update to the shared state of this number.

        It is not added if that has changed, or the client has sent another update meanwhile. Raises UnsettledError
        if the connection was lost during the commit: the row may name a body.
        """
        return await self._batches.add(GivenReceipt(update, number))

    async def add_arrival(self, arrival: Arrival, *, now: float) -> None:
        """Adds an accepted request to the audit log."""
        await self._batches.add(GivenArrival(arrival, now))

    def _store(self, given: Sequence[Given]) -> list[Recorded | Exception]:
        """Stores a batch; a refused row refuses no other."""
        try:
            return list(self._store_together(given))
        except UnavailableError as error:
            if len(given) == 1 or isinstance(error.__cause__, LostCommitError):
                return [error] * len(given)
        return [self._store([one])[0] for one in given]

    def _store_together(self, given: Sequence[Given]) -> Sequence[Recorded]:
        receipts = sorted((one for one in given if isinstance(one, GivenReceipt)), key=lambda one: one.order)
        arrivals = [one for one in given if isinstance(one, GivenArrival)]
        statements: list[Statement] = []
        if receipts:
            statements += [BESIDE_TRANSITIONS, (RECEIPTS, _rows(receipts))]
        if arrivals:
            statements += [BESIDE_ARRIVALS, (ARRIVALS, _rows(arrivals))]
        with self._database.disk.translate_errors("a database that can be written"):
            *found, numbers = self._workers.run_transaction(self._session, [*statements, NUMBER])
        added = set(found[1]) if receipts else set()
        known = partial(Recorded, number=int(numbers[0][0]))
        return [known(added=isinstance(one, GivenArrival) or (*one.order, one.update.blob) in added) for one in given]


def _rows(given: Sequence[Given]) -> dict[str, str]:
    return {"rows": json.dumps([one.row() for one in given])}
