"""Grid of the operator's page: the state of each client in each round."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from aggregator_service.storage.records import instant
from shared.protocol.schemas import ParticipantOut, RoundOut, RunHistoryOut
from shared.web.pages import Verdict
from shared.words import format_time

SLOW = 2.0  # times the slowest recent update: a client that takes longer is late
LEAST_SLOW_SECONDS = 10.0  # a shorter delay never counts as late: in rounds of a few seconds it is normal
COMPARED_ROUNDS = 10  # recent rounds, by whose updates a client is late

NOT_IN_ROUND = Verdict("none", "not enrolled", "enrolled in a later round")
LEGEND = (
    Verdict("good", "received", "the update has arrived"),
    Verdict("busy", "training", "has called in this round; no update yet"),
    Verdict("idle", "waiting", "has not called in this round yet, or waits for others"),
    Verdict("warn", "late", f"past the deadline, or {SLOW:g} times as slow as the slowest recent update"),
    Verdict("bad", "missing", "the round ended without its update"),
    Verdict("shut", "quarantined", "its updates are refused; no round waits for it"),
    Verdict("cut", "cancelled", "the run was cancelled first"),
    NOT_IN_ROUND,
)


@dataclass(frozen=True)
class ClientActivity:
    """Current time, and the last call of each client, in seconds since the epoch.

    streams: the clients that hold a stream.
    """

    now: float
    seen: Mapping[str, float] = field(default_factory=dict)
    streams: Container[str] = ()

    def last_seen(self, client: str) -> str | None:
        """Returns the last call as ISO 8601.

        None if there was none since the service started.
        """
        return None if client not in self.seen else instant(self.seen[client])


@dataclass(frozen=True)
class RunSnapshot:
    """A run at one moment."""

    run: RunHistoryOut
    at: ClientActivity

    def client_state(self, one: RoundOut, part: ParticipantOut) -> Verdict:
        """Returns the state of a participant in a round."""
        if part.received:
            return Verdict("good", "received", f"at {format_time(part.received_at)}")
        if part.quarantined:
            return Verdict("shut", "quarantined", "its updates are refused; the round did not wait for it")
        if one.phase == "open":
            return self._awaited_state(one, part.client)
        if one.phase == "cancelled":
            return Verdict("cut", "cancelled", "the run was cancelled before its update arrived")
        return Verdict("bad", "missing", f"no update when round {one.number} ended")

    def _awaited_state(self, one: RoundOut, client: str) -> Verdict:
        opened = read_instant(one.opened_at)
        if self.run.deadline_at is not None and self.at.now >= read_instant(self.run.deadline_at):
            return Verdict("warn", "late", "the deadline has passed")
        if one.secure is not None and client not in one.secure.waiting_for:
            return Verdict("idle", "waiting", f"step {one.secure.step}: it waits for others")
        if self.at.seen.get(client, 0.0) < opened:
            return Verdict("idle", "waiting", "has not called since the round opened")
        if self.late_seconds is not None and self.at.now - opened > self.late_seconds:
            return Verdict("warn", "late", "takes much longer than recent updates")
        step = "" if one.secure is None else f"step {one.secure.step} of a secure round"
        return Verdict("busy", "training", step or "has called since the round opened; no update yet")

    @cached_property
    def late_seconds(self) -> float | None:
        """Seconds after a round's opening when an update is late; None before any round ended."""
        known = [
            read_instant(part.received_at) - read_instant(one.opened_at)
            for one in self.run.rounds[-COMPARED_ROUNDS - 1 : -1]
            for part in one.participants
            if part.received_at is not None
        ]
        return max(LEAST_SLOW_SECONDS, SLOW * max(known)) if known else None


def read_instant(written: str) -> float:
    """Parses ISO 8601 into seconds since the epoch."""
    return datetime.fromisoformat(written).timestamp()


GRID_ROUNDS, GRID_CLIENTS = 10, 100
JOINED = Verdict("good", "joined", "no run yet")
IN_WAITING_RUN = Verdict("idle", "waiting", "has joined; the run waits for others")
NEVER_JOINED = Verdict("none", "never joined", "registered, not joined: start its service")

Rounds = tuple[tuple[RoundOut, dict[str, ParticipantOut]], ...]


@dataclass(frozen=True)
class GridRow:
    """Row of one client: its state, last call, and a cell for each round.

    streams: whether it holds a stream.
    """

    client: str
    now: Verdict
    last_seen: str | None
    cells: tuple[Verdict, ...]
    streams: bool = False


@dataclass(frozen=True)
class Grid:
    """Grid of clients and rounds.

    rounds: numbers, newest first. more: how many clients are not shown.
    """

    rounds: tuple[int, ...]
    rows: tuple[GridRow, ...]
    more: int


def build_grid(
    snapshot: RunSnapshot | None, joined: Iterable[str], registered: Iterable[str], at: ClientActivity
) -> Grid:
    """Builds the grid, by client name; clients that never joined come last.

    Where there are more clients than a page shows, those with an update are left out first.
    """
    shown = () if snapshot is None else snapshot.run.rounds[-GRID_ROUNDS:][::-1]
    rounds: Rounds = tuple((one, {part.client: part for part in one.participants}) for one in shown)
    members = set(joined).union(*(parts for _, parts in rounds))
    absent = set(registered) - members
    empty = (NOT_IN_ROUND,) * len(rounds)
    rows = [_member_row(client, snapshot, rounds, at) for client in sorted(members)]
    rows += [GridRow(client, NEVER_JOINED, at.last_seen(client), empty) for client in sorted(absent)]
    kept = sorted(range(len(rows)), key=lambda place: rows[place].now.kind == "good")[:GRID_CLIENTS]
    return Grid(
        tuple(one.number for one in shown),
        tuple(rows[place] for place in sorted(kept)),
        max(0, len(rows) - GRID_CLIENTS),
    )


def _member_row(client: str, snapshot: RunSnapshot | None, rounds: Rounds, at: ClientActivity) -> GridRow:
    cells = tuple(
        snapshot.client_state(one, parts[client]) if snapshot is not None and client in parts else NOT_IN_ROUND
        for one, parts in rounds
    )
    return GridRow(client, _state_now(snapshot, cells), at.last_seen(client), cells, client in at.streams)


def _state_now(snapshot: RunSnapshot | None, cells: tuple[Verdict, ...]) -> Verdict:
    if snapshot is None:
        return JOINED
    if snapshot.run.phase == "waiting":
        return IN_WAITING_RUN
    return cells[0] if cells else NOT_IN_ROUND
