"""A run, who is registered and who has joined -> a grid of clients by rounds, with when each was heard of last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aggregator_service.pages.states import NOT_IN_ROUND, RunWatch, Sightings
from shared.protocol.schemas import ParticipantOut, RoundOut
from shared.web.pages import Verdict

GRID_ROUNDS, GRID_CLIENTS = 10, 100
JOINED = Verdict("good", "joined", "no run yet")
IN_WAITING_RUN = Verdict("idle", "waiting", "has joined; the run waits for others")
NEVER_JOINED = Verdict("none", "never joined", "registered, and has not joined: is its service started?")

Rounds = tuple[tuple[RoundOut, dict[str, ParticipantOut]], ...]


@dataclass(frozen=True)
class GridRow:
    """One client: how it stands now, when it was heard of last, and a cell for each round of the grid."""

    client: str
    now: Verdict
    last_seen: str | None
    cells: tuple[Verdict, ...]


@dataclass(frozen=True)
class Grid:
    """`rounds`: their numbers, newest first. `more`: how many clients are not shown."""

    rounds: tuple[int, ...]
    rows: tuple[GridRow, ...]
    more: int


def build_grid(watch: RunWatch | None, joined: Iterable[str], registered: Iterable[str], at: Sightings) -> Grid:
    """By name, those who never joined last. Of more clients than a page holds, those whose update is in are left out
    first."""
    shown = () if watch is None else watch.run.rounds[-GRID_ROUNDS:][::-1]
    rounds: Rounds = tuple((one, {part.client: part for part in one.participants}) for one in shown)
    members = set(joined).union(*(parts for _, parts in rounds))
    absent = set(registered) - members
    empty = (NOT_IN_ROUND,) * len(rounds)
    rows = [_member_row(client, watch, rounds, at) for client in sorted(members)]
    rows += [GridRow(client, NEVER_JOINED, at.last_seen(client), empty) for client in sorted(absent)]
    kept = sorted(range(len(rows)), key=lambda place: rows[place].now.kind == "good")[:GRID_CLIENTS]
    return Grid(
        tuple(one.number for one in shown),
        tuple(rows[place] for place in sorted(kept)),
        max(0, len(rows) - GRID_CLIENTS),
    )


def _member_row(client: str, watch: RunWatch | None, rounds: Rounds, at: Sightings) -> GridRow:
    cells = tuple(
        watch.state(one, parts[client]) if watch is not None and client in parts else NOT_IN_ROUND
        for one, parts in rounds
    )
    return GridRow(client, _state_now(watch, cells), at.last_seen(client), cells)


def _state_now(watch: RunWatch | None, cells: tuple[Verdict, ...]) -> Verdict:
    if watch is None:
        return JOINED
    if watch.run.phase == "waiting":
        return IN_WAITING_RUN
    return cells[0] if cells else NOT_IN_ROUND
