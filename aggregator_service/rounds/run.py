"""A run as it stands in its current round, and what was accepted of it. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from aggregator_service.rounds.secure_run import Pledge, select_awaited
from aggregator_service.storage.rows import Receipt
from shared.errors import ConflictError, ProtocolError
from shared.protocol.schemas import ENDED, Cause, Phase, RunIn
from shared.protocol.secure.server import SecureRound
from shared.strategies.robust_aggregation import least_updates

CANCELLED = "the operator has cancelled it"


@dataclass(frozen=True)
class Run:
    """A run as it stands in its current round; `receipts` are that round's, by client.

    `enrolled`: the first round that each client takes part in.
    `lost`: whose update of the current round was accepted, and then damaged before it was aggregated.
    `quarantined`: who of the federation is shut out, and why; `readmitted`: let in again since this round was opened.
    `pledge`: what a secure run is held on, None in an open one; `exchange`: the round's messages so far.
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
        """Who is enrolled."""
        return self.enrolled.keys()

    @property
    def active(self) -> bool:
        return self.phase not in ENDED

    @property
    def awaited(self) -> Set[str]:
        """The enrolled clients that are not quarantined, and that may be in this round: those that count."""
        allowed = self.clients - self.quarantined.keys()
        if self.pledge is None:
            return allowed
        return select_awaited(self.pledge, allowed, changing_members=self.request.changing_members)

    @property
    def quorum(self) -> int:
        return needed_updates(self.request, len(self.awaited))

    @property
    def missing(self) -> tuple[str, ...]:
        """Awaited clients whose update of the current round is not in, sorted."""
        return tuple(sorted(self.awaited - self.receipts.keys()))

    @property
    def to_send_again(self) -> frozenset[str]:
        """Who has to send once more what was accepted before. As a rule nobody, which takes no look at all clients."""
        asked = (self.lost | self.readmitted) - self.receipts.keys()
        return asked & self.awaited if asked else asked

    @property
    def moved_at(self) -> float:
        """When it last went from one phase to the next; of a round that is open, when it opened."""
        if self.phase == "waiting":
            return self.started_at
        return self.opened_at if self.closed_at is None else self.closed_at

    def require_unbroken(self) -> None:
        """ConflictError where it has ended without a result."""
        if self.phase in ("failed", "cancelled"):
            raise ConflictError(f"{self.name} {'has failed' if self.phase == 'failed' else 'has ended'}: {self.reason}")

    def asks_again(self, client: str) -> bool:
        return self.phase == "open" and client in self.to_send_again

    def is_aggregated(self, number: int) -> bool:
        """Is the state after round `number` there?"""
        return number < self.round or (number == self.round and self.phase == "finished")


def require_quorum(request: RunIn) -> None:
    """ProtocolError for a quorum of more than all clients, or of fewer updates than are needed to aggregate them."""
    if request.quorum is not None and request.quorum > request.clients:
        raise ProtocolError(f"quorum: expected at most clients = {request.clients}, got {request.quorum}")
    if (least := request.quorum or request.clients) < (needed := least_updates(request.method)):
        how = f"with aggregate = {request.method.aggregate}, tolerated = {request.method.tolerated}"
        raise ProtocolError(f"quorum: expected {needed} or more {how}, got {least}")


def needed_updates(request: RunIn, awaited: int) -> int:
    """Of a round: as many as the operator has said; else as many as clients, or as are still awaited if these are
    fewer, and enough to be aggregated."""
    return request.quorum or max(least_updates(request.method), min(request.clients, awaited))
