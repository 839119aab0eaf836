"""Events (a join, an update, time that passes) -> the next state of a run. Pure: no clock, no HTTP, no disk.

waiting -> open -> aggregated -> open ... -> finished; each but the last may also end as failed, with a reason.
From aggregated a round opens again where the disk has lost an update of it.
Times are seconds since the epoch, given by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from shared.errors import ConflictError, NotFoundError, ProtocolError, RoundClosedError
from shared.schemas import Phase, RunIn, RunOut, Standing


@dataclass(frozen=True)
class Receipt:
    """One accepted update."""

    run: str
    round: int
    client: str
    digest: str
    size: int
    received_at: float


@dataclass(frozen=True)
class Run:
    """A run as it stands in its current round; `receipts` are that round's, by client.

    `lost`: whose update of that round was accepted, and then damaged before it was aggregated.
    """

    name: str
    request: RunIn
    started_at: float
    deadline: float
    clients: frozenset[str]
    phase: Phase = "waiting"
    round: int = 0
    opened_at: float = 0.0
    closed_at: float | None = None
    reason: str | None = None
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()

    @property
    def active(self) -> bool:
        return self.phase not in ("finished", "failed")

    @property
    def quorum(self) -> int:
        return self.request.quorum or self.request.clients

    @property
    def missing(self) -> tuple[str, ...]:
        """Enrolled clients whose update of the current round is not in, sorted."""
        return tuple(sorted(self.clients - self.receipts.keys()))

    def asks_again(self, client: str) -> bool:
        """Has this client to send once more what was accepted before?"""
        return self.phase == "open" and client in self.lost - self.receipts.keys()

    def aggregated(self, number: int) -> bool:
        """Is the state after round `number` there?"""
        return number < self.round or (number == self.round and self.phase == "finished")


def next_name(run: Run | None) -> str:
    """The name of the run after this one, the newest; ConflictError while it is active."""
    if run is not None and run.active:
        raise ConflictError(f"expected no active run, {run.name} is {run.phase}")
    return f"run-{1 + (int(run.name.removeprefix('run-')) if run else 0)}"


def start(name: str, request: RunIn, *, clients: frozenset[str], now: float) -> Run:
    """A new run with everybody who has joined so far; ProtocolError if it could never reach its quorum."""
    if request.quorum is not None and request.quorum > request.clients:
        raise ProtocolError(f"quorum: expected at most clients = {request.clients}, got {request.quorum}")
    return advance(Run(name, request, now, now + request.deadline_seconds, clients), now)


def enrol(run: Run, client: str, *, now: float) -> Run:
    """A client that joins takes part from the current round on; once a run has ended nothing changes."""
    if not run.active or client in run.clients:
        return run
    return advance(replace(run, clients=run.clients | {client}), now)


def accept(run: Run, receipt: Receipt, *, earlier: Receipt | None = None) -> Run:
    """Take an update in. The same one again changes nothing; `earlier`: what is held of a round before the current.

    Raises NotFoundError (not enrolled), ConflictError (another digest came before), RoundClosedError.
    """
    if receipt.client not in run.clients:
        raise NotFoundError(f"client {receipt.client!r} is not enrolled in {run.name}")
    held = run.receipts.get(receipt.client) if receipt.round == run.round else earlier
    if held is not None:
        return _unchanged(run, held, receipt)
    require_open(run, receipt.round, now=receipt.received_at)
    taken = replace(run, receipts={**run.receipts, receipt.client: receipt})
    return advance(taken, receipt.received_at)


def _unchanged(run: Run, held: Receipt, receipt: Receipt) -> Run:
    if held.digest != receipt.digest:
        raise ConflictError(f"round {held.round}: expected digest {held.digest} as before, got {receipt.digest}")
    return run


def require_open(run: Run, number: int, *, now: float) -> None:
    """RoundClosedError unless round `number` of this run takes updates at this moment."""
    if run.phase != "open" or number != run.round:
        raise RoundClosedError(f"expected round {run.round} ({run.phase}) of {run.name}, got round {number}")
    if now >= run.deadline:
        raise RoundClosedError(f"round {number} of {run.name} closed at its deadline")


def advance(run: Run, now: float) -> Run:
    """What follows from who is there and from the time: a round opens, closes, or the run fails. Else the same run."""
    if run.phase == "waiting":
        return _leave_waiting(run, now)
    if run.phase == "open":
        return _leave_open(run, now)
    return run


def _leave_waiting(run: Run, now: float) -> Run:
    if len(run.clients) >= run.request.clients:
        return _open(run, 1, now)
    if now < run.deadline:
        return run
    return fail(run, f"{len(run.clients)} of {run.request.clients} clients had joined at the deadline", now=now)


def _leave_open(run: Run, now: float) -> Run:
    late = now >= run.deadline
    if len(run.receipts) >= run.quorum and (late or not run.missing):
        return replace(run, phase="aggregated", closed_at=now)
    if not late:
        return run
    held = f"round {run.round}: {len(run.receipts)} of {run.quorum} updates at the deadline"
    return fail(run, f"{held}, missing {', '.join(run.missing)}{_damage(run)}", now=now)


def _damage(run: Run) -> str:
    if not (gone := sorted(run.lost - run.receipts.keys())):
        return ""
    return f"; the disk had damaged what {', '.join(gone)} had sent: check it, then start a new run"


def lose(run: Run, clients: Collection[str], *, now: float) -> Run:
    """Updates of a closed round that cannot be read as they came. They are asked for again while the round's time
    lasts; once it is over the round does without them, or the run fails."""
    if run.phase != "aggregated":
        raise RoundClosedError(f"expected an aggregated round, got round {run.round} ({run.phase})")
    kept = {client: receipt for client, receipt in run.receipts.items() if client not in clients}
    return advance(replace(run, phase="open", closed_at=None, receipts=kept, lost=run.lost | {*clients}), now)


def proceed(run: Run, now: float) -> Run:
    """Once the state after the current round is durable: the next round opens, or the run is finished."""
    if run.phase != "aggregated":
        raise RoundClosedError(f"expected an aggregated round, got round {run.round} ({run.phase})")
    if run.round == run.request.rounds:
        return replace(run, phase="finished")
    return _open(run, run.round + 1, now)


def fail(run: Run, reason: str, *, now: float) -> Run:
    """End a run for a reason that the operator can act on."""
    return replace(run, phase="failed", reason=reason, closed_at=now)


def _open(run: Run, number: int, now: float) -> Run:
    deadline = now + run.request.deadline_seconds
    opened = replace(run, phase="open", round=number, opened_at=now, deadline=deadline, closed_at=None)
    return replace(opened, receipts={}, lost=frozenset())


def view(run: Run, client: str, *, sequence: int, now: float) -> RunOut:
    """The run as one client may see it: its own standing, and of the others only how many."""
    return RunOut(
        sequence=sequence,
        run=run.name,
        phase=run.phase,
        round=run.round,
        rounds=run.request.rounds,
        seed=run.request.seed,
        seconds_left=max(0.0, run.deadline - now) if run.phase in ("waiting", "open") else None,
        standing=_standing(run, client),
        joined=len(run.clients),
        received=len(run.receipts),
        method=run.request.method,
    )


def _standing(run: Run, client: str) -> Standing:
    if client in run.receipts:
        return "received"
    return "expected" if run.active and client in run.clients else "absent"
