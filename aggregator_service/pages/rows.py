"""Rows of the operator's page: rounds, clients and arrivals, newest first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from aggregator_service.pages.client_grid import RunSnapshot
from aggregator_service.pages.overview import awaited_clients, join_names, round_seconds
from aggregator_service.storage.arrivals import LEAST_REFUSED
from shared.method.declaration import TRAINING
from shared.protocol.schemas import ArrivalOut, ArrivalsOut, ParticipantOut, RoundOut, RunHistoryOut
from shared.sums import describe_part
from shared.web.pages import Verdict
from shared.words import count_noun, format_duration, format_time

SHOWN_ROUNDS, SHOWN_CLIENTS = 10, 100


@dataclass(frozen=True)
class RoundRow:
    """One round; `more`: clients that are not among `participants`."""

    key: str
    number: int
    state: Verdict
    opened_at: str
    time: str
    received: str
    bytes: int
    participants: tuple[ParticipantRow, ...]
    more: int


@dataclass(frozen=True)
class ParticipantRow:
    """One client in one round, with its state."""

    part: ParticipantOut
    state: Verdict


@dataclass(frozen=True)
class ClientRow:
    """One client over all rounds of a run; `missed`: rounds that ended without its update."""

    client: str
    updates: int
    missed: int
    bytes: int
    last: ParticipantOut | None


def round_rows(snapshot: RunSnapshot) -> tuple[RoundRow, ...]:
    """Returns the newest rounds, newest first."""
    return tuple(_round(snapshot, one) for one in snapshot.run.rounds[-SHOWN_ROUNDS:][::-1])


def _round(snapshot: RunSnapshot, one: RoundOut) -> RoundRow:
    run = snapshot.run
    received, expected = len(one.participants) - len(one.missing), len(one.participants)
    return RoundRow(
        key=f"{run.run}-round-{one.number}",
        number=one.number,
        state=_state(run, one),
        opened_at=one.opened_at,
        time="open" if one.closed_at is None else format_duration(round_seconds(one)),
        received=f"{received} of {count_noun(expected, 'update')}",
        bytes=sum(participant.size for participant in one.participants),
        participants=tuple(
            ParticipantRow(part, snapshot.client_state(one, part)) for part in one.participants[:SHOWN_CLIENTS]
        ),
        more=max(0, expected - SHOWN_CLIENTS),
    )


def _state(run: RunHistoryOut, one: RoundOut) -> Verdict:
    if one.phase == "open":
        return Verdict("busy", "open", f"{awaited_clients(one)}, until {format_time(run.deadline_at)}")
    if one.phase == "cancelled":
        return Verdict("cut", "cancelled", f"without {join_names(one.missing)}")
    if one.phase == "failed":
        return Verdict("bad", "failed", f"without {join_names(one.missing)}")
    if away := [participant.client for participant in one.participants if not participant.received]:
        return Verdict("warn", "aggregated", f"without {join_names(away)}")
    return Verdict("good", "aggregated", "with all clients")


def client_rows(run: RunHistoryOut) -> tuple[ClientRow, ...]:
    """Returns the clients of the run by name, up to SHOWN_CLIENTS."""
    found: dict[str, list[ParticipantOut]] = {}
    for one in run.rounds:
        for participant in one.participants:
            found.setdefault(participant.client, []).append(participant)
    missed = Counter(name for one in run.rounds if one.phase != "open" for name in one.missing)
    return tuple(_client(name, found[name], missed[name]) for name in sorted(found)[:SHOWN_CLIENTS])


def _client(name: str, parts: list[ParticipantOut], missed: int) -> ClientRow:
    sent = [one for one in parts if one.received]
    return ClientRow(name, len(sent), missed, sum(one.size for one in sent), sent[-1] if sent else None)


def describe_purpose(run: RunHistoryOut) -> str:
    """Describes the purpose of a run: training, or the sum that it makes."""
    if run.request.part != TRAINING:
        return describe_part(run.request.part, run.request.method.basis.kind)
    return f"training with the basis of {run.request.basis}" if run.request.basis else "training"


SHOWN = 20


@dataclass(frozen=True)
class ArrivalRow:
    """One entry of the audit log, with its outcome."""

    arrival: ArrivalOut
    outcome: Verdict


@dataclass(frozen=True)
class ArrivalsPage:
    """One page of the audit log, with links to older and newer pages."""

    rows: tuple[ArrivalRow, ...]
    total: int
    older: str | None
    newer: str | None


def arrivals_window(total: int, before: int | None) -> tuple[int, int]:
    """Returns the sequence number just before a page of arrivals, and the page's length.

    The page holds the newest arrivals with a number below `before`, by default of all.
    """
    last = total if before is None else max(0, min(before - 1, total))
    return max(0, last - SHOWN), max(1, min(SHOWN, last))


def arrivals_page(found: ArrivalsOut, chosen: str | None) -> ArrivalsPage:
    """Builds a page of arrivals, whose links keep the chosen run."""
    entries = found.entries
    first, last = (entries[0].sequence, entries[-1].sequence) if entries else (1, 0)
    keep = "" if chosen is None else f"run={chosen}&"
    return ArrivalsPage(
        rows=tuple(ArrivalRow(one, _outcome(one)) for one in entries[::-1]),
        total=found.total,
        older=f"./?{keep}before={first}#arrivals" if first > 1 else None,
        newer=f"./?{keep}before={last + SHOWN + 1}#arrivals" if last < found.total else None,
    )


def _outcome(one: ArrivalOut) -> Verdict:
    if one.status >= LEAST_REFUSED:
        return Verdict("bad", f"refused: {one.code or one.status}", f"answered with status {one.status}")
    return Verdict("good", "accepted", f"answered with status {one.status}")
