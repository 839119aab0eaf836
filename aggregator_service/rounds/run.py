"""A run in its current round, and the JSON document that stores it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.main import IncEx
from sqlalchemy import Connection

from aggregator_service.rounds.secure_run import Pledge, select_awaited
from aggregator_service.storage import run_store
from aggregator_service.storage.database import Database
from aggregator_service.storage.records import Receipt, UncoveredSum
from aggregator_service.storage.run_store import Write, stored_updates
from shared.errors import ConflictError, ProtocolError
from shared.protocol.schemas import ENDED, Cause, Phase, RunIn
from shared.protocol.secure.messages import VERSION
from shared.protocol.secure.server import PHASES, SecureRound
from shared.strategies.robust_aggregation import least_updates

CANCELLED = "the operator has cancelled it"
EARLIER = "it was begun under an earlier version of secure aggregation"


class RoundReceipts(Mapping[str, Receipt]):
    """Receipts of a round by client, in the order of their arrival.

    They never change: `adding` returns others, and costs the same however many there are. Both share the receipts that
    they have in common: each receipt has a place, and each mapping knows how many places are its own.
    """

    __slots__ = ("_clients", "_count", "_places")

    def __init__(self, receipts: Mapping[str, Receipt]) -> None:
        self._clients = list(receipts)
        self._places = {client: (place, receipt) for place, (client, receipt) in enumerate(receipts.items())}
        self._count = len(self._clients)

    def adding(self, receipt: Receipt) -> RoundReceipts:
        """Returns these receipts and this one, in place of an earlier one of its client."""
        known = self
        if len(self._clients) != self._count:  # the next place is taken, such as by a transition that was not stored
            known = RoundReceipts(self)
        if receipt.client in known._places:
            return RoundReceipts({**known, receipt.client: receipt})
        more = object.__new__(RoundReceipts)
        more._clients, more._places, more._count = known._clients, known._places, known._count + 1
        known._places[receipt.client] = known._count, receipt
        known._clients.append(receipt.client)
        return more

    def __getitem__(self, client: str) -> Receipt:
        place, receipt = self._places[client]
        if place >= self._count:
            raise KeyError(client)
        return receipt

    def __iter__(self) -> Iterator[str]:
        return islice(self._clients, self._count)  # of a list, so that another thread may add meanwhile

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"RoundReceipts({dict(self)!r})"


def add_receipt(receipts: Mapping[str, Receipt], receipt: Receipt) -> RoundReceipts:
    """Returns the receipts and one more; the given ones stay as they are."""
    known = receipts if isinstance(receipts, RoundReceipts) else RoundReceipts(receipts)
    return known.adding(receipt)


@dataclass(frozen=True)
class Run:
    """A run in its current round; `receipts` are that round's, by client.

    enrolled: first round of each client. lost: clients whose accepted update of the current round was damaged before
    it was aggregated. quarantined: quarantined clients of the federation with the cause. readmitted: clients whose
    quarantine was lifted since this round opened. pledge: promise to the clients of a secure run, None in an open
    one. exchange: messages of the secure round so far.
    """

    name: str
    request: RunIn
    started_at: float
    deadline: float
    enrolled: Mapping[str, int]
    phase: Phase = "waiting"
    round: int = 0
    opened_at: float = 0.0
    closed_at: float | None = None
    reason: str | None = None
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    quarantined: Mapping[str, Cause] = field(default_factory=dict)
    readmitted: frozenset[str] = frozenset()
    pledge: Pledge | None = None
    exchange: SecureRound | None = None

    @property
    def clients(self) -> Set[str]:
        """Enrolled clients."""
        return self.enrolled.keys()

    @property
    def active(self) -> bool:
        return self.phase not in ENDED

    @property
    def awaited(self) -> Set[str]:
        """Enrolled clients that count in this round: not quarantined, and allowed to take part."""
        # Without quarantines it is the enrolled clients themselves: each upload asks for their number.
        allowed = self.clients - self.quarantined.keys() if self.quarantined else self.clients
        if self.pledge is None:
            return allowed
        return select_awaited(self.pledge, allowed, changing_members=self.request.changing_members)

    @property
    def quorum(self) -> int:
        return needed_updates(self.request, len(self.awaited))

    @property
    def is_complete(self) -> bool:
        """Whether each awaited client has an update in the current round."""
        return len(self.receipts) >= len(self.awaited) and self.awaited <= set(self.receipts)

    @property
    def missing(self) -> tuple[str, ...]:
        """Awaited clients without an update in the current round, sorted."""
        return tuple(sorted(self.awaited - self.receipts.keys()))

    @property
    def resending_clients(self) -> frozenset[str]:
        """Clients that must send an accepted update again.

        Usually none, which is found without a look at all clients.
        """
        asked = (self.lost | self.readmitted) - self.receipts.keys()
        return asked & self.awaited if asked else asked

    @property
    def phase_began_at(self) -> float:
        """Time of the last change of phase; for an open round, its opening."""
        if self.phase == "waiting":
            return self.started_at
        return self.opened_at if self.closed_at is None else self.closed_at

    def require_not_ended(self) -> None:
        """Raises ConflictError if the run has failed or was cancelled."""
        if self.phase in ("failed", "cancelled"):
            raise ConflictError(f"{self.name} {'has failed' if self.phase == 'failed' else 'has ended'}: {self.reason}")

    def must_resend(self, client: str) -> bool:
        return self.phase == "open" and client in self.resending_clients

    def require_sent_again(self, client: str) -> None:
        """Raises ConflictError if this client has to send its update again."""
        if self.must_resend(client):
            why = "the aggregator's disk damaged your update" if client in self.lost else "your quarantine was lifted"
            raise ConflictError(f"round {self.round}: {why}; send one again")

    def is_aggregated(self, number: int) -> bool:
        """Tells whether the state after round `number` exists."""
        return number < self.round or (number == self.round and self.phase == "finished")


def require_quorum(request: RunIn) -> None:
    """Raises ProtocolError for a quorum above all clients, or too small to aggregate."""
    if request.quorum is not None and request.quorum > request.clients:
        raise ProtocolError(f"quorum: expected at most clients = {request.clients}, got {request.quorum}")
    if (least := request.quorum or request.clients) < (needed := least_updates(request.method)):
        how = f"with aggregate = {request.method.aggregate}, tolerated = {request.method.tolerated}"
        raise ProtocolError(f"quorum: expected {needed} or more {how}, got {least}")


def needed_updates(request: RunIn, awaited: int) -> int:
    """Returns the number of updates that a round needs.

    It is the operator's quorum; without one, as many as clients, or as are still awaited if these are fewer, and at
    least enough to be aggregated.
    """
    return request.quorum or max(least_updates(request.method), min(request.clients, awaited))


MESSAGES: IncEx = {str(phase) for phase in PHASES}
IN_ROWS: dict[str, IncEx | bool] = {"receipts": True, "exchange": MESSAGES}


class RunDocument(BaseModel):
    """Stored form of a `Run`.

    A change of the fields of `Run` needs defaults, or another version with a revision that converts.
    """

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    run: Run


def encode_run(run: Run) -> str:
    """Encodes a run as its JSON document."""
    return RunDocument(run=run).model_dump_json(exclude={"run": IN_ROWS})


def decode_run(document: str) -> Run:
    """Decodes a run's document, without the parts stored in rows.

    Earlier versions stored a cancelled run as a failed one. A run in a secure round of an earlier version has failed.
    """
    try:
        run = RunDocument.model_validate_json(document).run
    except ValidationError as error:
        if (found := _end_earlier_exchange(document)) is None:
            raise error
        run = found
    if (run.phase, run.reason) == ("failed", CANCELLED):
        return replace(run, phase="cancelled")
    return run


def _end_earlier_exchange(document: str) -> Run | None:
    """Reads a run without its secure round of an earlier version.

    None if it has no such round.
    """
    content = json.loads(document)
    exchange = content["run"].get("exchange")
    if exchange is None or exchange["terms"].get("version") == VERSION:
        return None
    run = RunDocument.model_validate_json(json.dumps(content | {"run": content["run"] | {"exchange": None}})).run
    return replace(run, phase="failed", reason=EARLIER, closed_at=run.opened_at) if run.active else run


def load_run(connection: Connection, name: str | None = None) -> Run | None:
    """Loads the named run, or the newest one; None if there is no such run."""
    document = run_store.run_document(connection, name)
    if document is None:
        return None
    run = decode_run(document)
    updates = stored_updates(connection, run.name, number=run.round)
    receipts = {update.receipt.client: update.receipt for update in updates}
    return replace(run, receipts=receipts, exchange=run.exchange and _load_exchange(connection, run.exchange))


def _load_exchange(connection: Connection, exchange: SecureRound) -> SecureRound:
    terms = exchange.terms
    messages = run_store.secure_messages(connection, terms.run, number=terms.round)
    return SecureRound.model_validate({"terms": terms, "phase": exchange.phase, **messages})


def differs_in_rows(before: Run | None, after: Run) -> bool:
    """Tells whether two runs have the same document, and differ in rows alone."""
    return before is not None and before.pledge is None and replace(after, receipts=before.receipts) == before


def save_run(
    database: Database, run: Run, *, sequence: int, writes: tuple[Write, ...] = (), before: Run | None = None
) -> None:
    """Stores a run with its writes and secure messages in one transaction.

    before: the run as it is stored, whose document stays where it is the same.
    """
    if differs_in_rows(before, run):
        run_store.commit_writes(database, writes)
        return
    every_write = (*writes, *_secure_writes(run))
    run_store.commit_run(database, run.name, encode_run(run), sequence=sequence, writes=every_write)


def _secure_writes(run: Run) -> Iterator[Write]:
    if run.pledge is None:
        return
    exchange = run.exchange
    yield partial(run_store.delete_messages, kept_round=None if exchange is None else (run.name, run.round))
    if exchange is not None and exchange.phase in ("consents", "answers"):
        common = exchange.terms.common
        uncovered = UncoveredSum(common.start, common.method, common.seed, run.name, exchange.survivors)
        yield partial(run_store.add_sum, uncovered=uncovered)
