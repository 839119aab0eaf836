"""State machine of a run: pure functions from an event to the next state.

A run goes from waiting to open to aggregated, open again for each round, and at last finished. Each state but the last
may also end as failed, with a reason, or as cancelled. A round opens again where the disk has damaged an update of it.
An open round of a secure run goes through the phases of `secure_run`: keys, shares, checks, masked, consents, answers.
Times are seconds since the epoch, given by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from aggregator_service.rounds import secure_run
from aggregator_service.rounds.run import CANCELLED, Run, add_receipt, require_quorum
from aggregator_service.rounds.secure_run import (
    Pledge,
    find_objection,
    open_exchange,
    record_stamps,
    record_sum,
    require_permitted_member,
)
from aggregator_service.storage.records import Quarantine, Receipt
from shared.errors import ConflictError, NotFoundError, QuarantinedError, RoundClosedError
from shared.protocol.schemas import Cause, Phase, RunIn
from shared.protocol.secure import server
from shared.protocol.secure.messages import MaskedHeader, PublicKeys
from shared.protocol.secure.server import RelayedMessage, SecureRound

CAUSE_TEXTS: Mapping[Cause, str] = {
    "refusals": "too many of your updates in one run did not match the declaration",
    "shares": "the shares that you sealed for another client do not match your commitments",
    "distance": "your update was farther from the round's start than the run allows",
    "operator": "the operator decided it",
}
"""Reasons shown to a quarantined client, without other clients or the operator's own words."""


def next_name(run: Run | None) -> str:
    """Returns the name of the run after this one; raises ConflictError while it is active."""
    if run is not None and run.active:
        raise ConflictError(f"expected no active run, {run.name} is {run.phase}")
    return f"run-{1 + (int(run.name.removeprefix('run-')) if run else 0)}"


def start_run(
    name: str,
    request: RunIn,
    *,
    clients: frozenset[str],
    now: float,
    pledge: Pledge | None = None,
    quarantined: Mapping[str, Cause] | None = None,
) -> Run:
    """Creates a run with all joined clients; raises ProtocolError if it cannot reach its quorum."""
    require_quorum(request)
    first = Run(name, request, now, now + request.deadline_seconds, dict.fromkeys(sorted(clients), 1), pledge=pledge)
    return advance_run(replace(first, quarantined=dict(quarantined or {})), now)


def enrol_client(run: Run, client: str, *, now: float) -> Run:
    """Enrols a client that joins, from the current round on.

    An ended run stays as it is.
    """
    if not run.active or client in run.clients:
        return run
    return advance_run(replace(run, enrolled={**run.enrolled, client: max(1, run.round)}), now)


def accept_update(
    run: Run, receipt: Receipt, *, earlier: Receipt | None = None, header: MaskedHeader | None = None
) -> Run:
    """Accepts an update; a repeat changes nothing.

    header: of a masked vector, which is the update of a secure round. The rest is as in `require_acceptable`.
    """
    if not require_acceptable(run, receipt, earlier=earlier):
        return run
    exchange = run.exchange
    if exchange is not None and header is not None:
        exchange = server.accept_header(exchange, header)
    taken = replace(run, receipts=add_receipt(run.receipts, receipt), exchange=exchange)
    return advance_run(taken, receipt.received_at)


def require_acceptable(run: Run, receipt: Receipt, *, earlier: Receipt | None = None) -> bool:
    """Refuses an update that cannot be accepted; False for a repeat.

    earlier: receipt of an earlier round. Raises NotFoundError (not enrolled), QuarantinedError, ConflictError (another
    digest came before), RoundClosedError.
    """
    require_enrolled(run, receipt.client)
    held = run.receipts.get(receipt.client) if receipt.round == run.round else earlier
    if held is None:
        require_open(run, receipt.round, now=receipt.received_at)
    elif held.digest != receipt.digest:
        raise ConflictError(f"round {held.round}: expected digest {held.digest} as before, got {receipt.digest}")
    return held is None


def accept_message(run: Run, message: RelayedMessage, *, now: float) -> Run:
    """Accepts a verified message of a secure round; a repeat changes nothing.

    Raises NotFoundError (not enrolled, or not in the phase before), QuarantinedError, ConflictError (another message
    came before), RoundClosedError, ProtocolError (it does not fit).
    """
    require_enrolled(run, message.client)
    if run.exchange is None or run.pledge is None or run.phase != "open" or message.round != run.round:
        raise RoundClosedError(f"expected round {run.round} ({run.phase}) of {run.name}, got round {message.round}")
    exchange = server.accept_message(run.exchange, message)
    if exchange is run.exchange:
        return run
    if isinstance(message, PublicKeys):
        require_permitted_member(run.pledge, message)
    require_open(run, message.round, now=now)
    return advance_run(replace(run, exchange=exchange), now)


def require_enrolled(run: Run, client: str) -> None:
    """Raises NotFoundError for a client that is not enrolled, QuarantinedError for a quarantined one."""
    if client not in run.clients:
        raise NotFoundError(f"client {client!r} is not enrolled in {run.name}")
    if (cause := run.quarantined.get(client)) is not None:
        raise QuarantinedError(
            f"you are quarantined: {CAUSE_TEXTS[cause]}; the aggregator's operator can let you in again"
        )


def is_open(run: Run, number: int, *, now: float) -> bool:
    """Tells whether round `number` of this run takes updates now."""
    return run.phase == "open" and number == run.round and now < run.deadline


def require_open(run: Run, number: int, *, now: float) -> None:
    """Raises RoundClosedError unless round `number` of this run takes updates now."""
    if run.phase != "open" or number != run.round:
        raise RoundClosedError(f"expected round {run.round} ({run.phase}) of {run.name}, got round {number}")
    if now >= run.deadline:
        raise RoundClosedError(f"round {number} of {run.name} closed at its deadline")


def advance_run(run: Run, now: float) -> Run:
    """Opens or closes a round, or fails the run, where clients and time require it."""
    if run.phase == "waiting":
        return _advance_waiting_run(run, now)
    if run.phase == "open":
        return _advance_open_round(run, now)
    return run


def _advance_waiting_run(run: Run, now: float) -> Run:
    if len(run.awaited) >= run.request.clients:
        return _open_round(run, 1, now)
    if now < run.deadline:
        return run
    return fail_run(run, f"{len(run.awaited)} of {run.request.clients} clients had joined at the deadline", now=now)


def _advance_open_round(run: Run, now: float) -> Run:
    if len(run.awaited) < run.quorum:
        left = f"{len(run.awaited)} clients are left that are not quarantined, expected {run.quorum} or more"
        return fail_run(run, f"round {run.round}: {left}", now=now)
    if run.exchange is not None and run.pledge is not None:
        return _advance_secure_phase(run, run.pledge, run.exchange, now)
    late = now >= run.deadline
    if len(run.receipts) >= run.quorum and (late or run.is_complete):
        return replace(run, phase="aggregated", closed_at=now)
    if not late:
        return run
    held = f"round {run.round}: {len(run.receipts)} of {run.quorum} updates at the deadline"
    return fail_run(run, f"{held}, missing {', '.join(run.missing)}{_describe_damage(run)}", now=now)


def _advance_secure_phase(run: Run, pledge: Pledge, exchange: SecureRound, now: float) -> Run:
    late, missing = now >= run.deadline, secure_run.expected_clients(exchange, run.awaited)
    if server.count_present(exchange) >= secure_run.needed_messages(exchange, run.quorum) and (late or not missing):
        if exchange.phase == "answers":
            return replace(run, phase="aggregated", closed_at=now)
        if exchange.phase != "consents" and (objection := find_objection(pledge, exchange)) is not None:
            return fail_run(run, f"round {run.round}: {objection}", now=now)
        after = server.close_phase(exchange)
        deadline = now + secure_run.PARTS[after.phase] * run.request.deadline_seconds
        pledge = record_stamps(pledge, after) if after.phase == "consents" else pledge
        return replace(run, pledge=pledge, exchange=after, deadline=deadline)
    if not late:
        return run
    return fail_run(run, secure_run.describe_shortage(exchange, run.awaited, run.quorum), now=now)


def _describe_damage(run: Run) -> str:
    if not (gone := sorted(run.resending_clients & run.lost)):
        return ""
    return f"; the disk had damaged what {', '.join(gone)} had sent: check it, then start a new run"


def reopen_damaged_round(run: Run, clients: Collection[str], *, now: float) -> Run:
    """Removes damaged updates of a closed round, which are requested again while time is left.

    After the deadline the round continues without them, or the run fails. A secure run fails at once.
    """
    if run.phase != "aggregated":
        raise RoundClosedError(f"expected an aggregated round, got round {run.round} ({run.phase})")
    if run.exchange is not None:  # the sum needs each vector, because the others' vectors hold its masks
        gone = ", ".join(sorted(clients))
        words = f"round {run.round}: the disk had damaged the masked vector of {gone}: check it, then start a new run"
        return fail_run(run, words, now=now)
    kept = {client: receipt for client, receipt in run.receipts.items() if client not in clients}
    return advance_run(replace(run, phase="open", closed_at=None, receipts=kept, lost=run.lost | {*clients}), now)


def quarantine_clients(run: Run, causes: Mapping[str, Cause], *, now: float) -> Run:
    """Removes clients from the run: rounds neither wait for them nor use their updates.

    A round may then close, or fail to reach its quorum: then the run fails. A masked vector stays in its secure
    round, where the others' vectors hold its masks; its client is out of the next round.
    """
    after = replace(run, quarantined={**run.quarantined, **causes})
    if not run.active:
        return after
    if run.exchange is None:
        kept = {client: receipt for client, receipt in run.receipts.items() if client not in causes}
        after = replace(after, receipts=kept)
        if run.phase == "aggregated":  # closed but not computed yet: check the quorum again
            after = replace(after, phase="open", closed_at=None)
    return advance_run(after, now)


def distance_quarantines(run: Run, beyond: Mapping[str, float], *, now: float) -> list[Quarantine]:
    """Creates a quarantine for each client whose update was too far from the median."""
    most = f"expected at most {run.request.method.quarantine_factor:g}"
    reasons = {
        client: f"its update was {times:.3g} times as far from the start as the median, {most}"
        for client, times in beyond.items()
    }
    return [Quarantine(client, "distance", why, now, run.name, run.round) for client, why in sorted(reasons.items())]


def readmit_client(run: Run, client: str, *, now: float) -> Run:
    """Waits for this client again from the current round on.

    It may send its update again.
    """
    kept = {name: cause for name, cause in run.quarantined.items() if name != client}
    return advance_run(replace(run, quarantined=kept, readmitted=run.readmitted | {client}), now)


def finish_round(run: Run, now: float, *, start: str | None = None, earlier: tuple[str, ...] | None = None) -> Run:
    """Opens the next round or finishes the run, after the current state is stored.

    For a secure run, start: the digest of that state; earlier: the members of another run's sum from there.
    """
    if run.phase != "aggregated":
        raise RoundClosedError(f"expected an aggregated round, got round {run.round} ({run.phase})")
    if run.pledge is not None and run.exchange is not None:
        pledge = record_sum(run.pledge, run.exchange).model_copy(update={"start": start, "earlier": earlier})
        run = replace(run, pledge=pledge)
    if run.round == run.request.rounds:
        return replace(run, phase="finished", exchange=None)
    return _open_round(run, run.round + 1, now)


def fail_run(run: Run, reason: str | None, *, now: float) -> Run:
    """Ends a run as failed for this reason, or as cancelled without one."""
    phase: Phase = "cancelled" if reason is None else "failed"
    return replace(run, phase=phase, reason=reason or CANCELLED, closed_at=now, exchange=None)


def _open_round(run: Run, number: int, now: float) -> Run:
    deadline, pledge, exchange = now + run.request.deadline_seconds, run.pledge, None
    if pledge is not None:
        pledge, exchange = open_exchange(pledge, run.request, run.name, number, len(run.awaited))
        deadline = now + secure_run.PARTS["keys"] * run.request.deadline_seconds
    opened = replace(run, phase="open", round=number, opened_at=now, deadline=deadline, closed_at=None)
    return replace(opened, receipts={}, lost=frozenset(), readmitted=frozenset(), pledge=pledge, exchange=exchange)
