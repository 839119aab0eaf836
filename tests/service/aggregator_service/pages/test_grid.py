"""The grid of clients by rounds: every state that a client can be in, and when each was heard of last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aggregator_service.pages.client_grid import (
    GRID_CLIENTS,
    GRID_ROUNDS,
    LEAST_SLOW_SECONDS,
    LEGEND,
    SLOW,
    ClientActivity,
    RunSnapshot,
    build_grid,
)
from aggregator_service.rounds.run import CANCELLED
from aggregator_service.storage.records import instant
from shared.protocol.schemas import ParticipantOut, Phase, RoundOut, RunHistoryOut, RunIn, SecureOut

if TYPE_CHECKING:
    from conftest import Running

START, LENGTH = 1_000_000.0, 30.0  # of the first round; from one round's opening to the next


def history(*rounds: RoundOut, phase: Phase = "open", reason: str | None = None) -> RunHistoryOut:
    deadline = instant(START + LENGTH * len(rounds) + 600) if phase in ("open", "waiting") else None
    return RunHistoryOut(
        run="run-1",
        phase=phase,
        reason=reason,
        request=RunIn(rounds=20),
        started_at=instant(START),
        deadline_at=deadline,
        rounds=rounds,
    )


def one_round(number: int, *parts: ParticipantOut, phase: Phase = "open", secure: SecureOut | None = None) -> RoundOut:
    opened = START + LENGTH * number
    closed = None if phase == "open" else instant(opened + LENGTH)
    return RoundOut(
        number=number, phase=phase, secure=secure, opened_at=instant(opened), closed_at=closed, participants=parts
    )


def sent(client: str, at: float) -> ParticipantOut:
    return ParticipantOut(client=client, received=True, size=10, digest="ab" * 32, received_at=instant(at))


def absent(client: str, *, quarantined: bool = False) -> ParticipantOut:
    return ParticipantOut(client=client, received=False, quarantined=quarantined)


States = dict[str, tuple[str, ...]]


def words(
    run: RunHistoryOut | None, at: ClientActivity, joined: tuple[str, ...] = (), registered: tuple[str, ...] = ()
) -> States:
    """The state of each client now, and in each round."""
    snapshot = None if run is None else RunSnapshot(run, at)
    grid = build_grid(snapshot, joined, registered, at)
    return {row.client: (row.now.word, *(cell.word for cell in row.cells)) for row in grid.rows}


def test_before_any_run_who_has_joined_and_who_never_has() -> None:
    found = words(None, ClientActivity(START), ("north",), ("north", "south"))
    assert found == {"north": ("joined",), "south": ("never joined",)}


def test_while_a_run_waits_for_clients() -> None:
    assert words(history(phase="waiting"), ClientActivity(START), ("north",), ("south",)) == {
        "north": ("waiting",),
        "south": ("never joined",),
    }


def test_in_an_open_round_nobody_is_missing() -> None:
    opened = START + LENGTH
    parts = (sent("east", opened + 5), absent("north"), absent("south"), absent("west", quarantined=True))
    at = ClientActivity(opened + 400, {"north": opened + 1, "south": opened - 1})
    assert words(history(one_round(1, *parts)), at) == {
        "east": ("received", "received"),
        "north": ("training", "training"),
        "south": ("waiting", "waiting"),
        "west": ("quarantined", "quarantined"),
    }


def test_late_is_who_takes_much_longer_than_anybody_before_or_than_the_deadline() -> None:
    first = one_round(1, sent("north", START + LENGTH + 20), absent("south"), phase="aggregated")
    opened = START + 2 * LENGTH
    run = history(first, one_round(2, absent("north"), absent("south")))
    seen = {"north": opened + 1}
    assert words(run, ClientActivity(opened + SLOW * 20 - 1, seen))["north"] == ("training", "training", "received")
    found = words(run, ClientActivity(opened + SLOW * 20 + 1, seen))
    assert found == {"north": ("late", "late", "received"), "south": ("waiting", "waiting", "missing")}
    found = words(run, ClientActivity(opened + 6000, seen))
    assert found == {"north": ("late", "late", "received"), "south": ("late", "late", "missing")}


def test_in_rounds_of_seconds_a_pause_is_no_news() -> None:
    first = one_round(1, sent("north", START + LENGTH + 0.1), phase="aggregated")
    run, opened = history(first, one_round(2, absent("north"))), START + 2 * LENGTH
    assert words(run, ClientActivity(opened + LEAST_SLOW_SECONDS - 1, {"north": opened}))["north"][0] == "training"
    assert words(run, ClientActivity(opened + LEAST_SLOW_SECONDS + 1, {"north": opened}))["north"][0] == "late"


def test_a_run_that_was_cancelled_has_cut_its_clients_off_and_one_that_failed_misses_them() -> None:
    cut = history(one_round(1, absent("north"), phase="cancelled"), phase="cancelled", reason=CANCELLED)
    assert words(cut, ClientActivity(START))["north"] == ("cancelled", "cancelled")
    part = one_round(1, absent("north"), phase="failed")
    assert words(history(part, phase="failed", reason="no quorum"), ClientActivity(START))["north"] == (
        "missing",
        "missing",
    )


def test_in_a_secure_round_who_has_done_its_step_waits_for_the_others() -> None:
    secure = SecureOut(step="masked", threshold=2, came={"keys": 3}, waiting_for=("north",))
    run, opened = history(one_round(1, absent("north"), absent("south"), secure=secure)), START + LENGTH
    found = words(run, ClientActivity(opened + 5, {"north": opened, "south": opened}))
    assert found == {"north": ("training", "training"), "south": ("waiting", "waiting")}


def test_who_joins_later_is_not_in_the_rounds_before() -> None:
    first = one_round(1, sent("north", START + LENGTH + 5), phase="aggregated")
    run = history(first, one_round(2, absent("north"), absent("south")))
    assert words(run, ClientActivity(START + 2 * LENGTH))["south"] == ("waiting", "waiting", "not enrolled")


def test_every_mark_is_explained() -> None:
    """The words of the tests above are those of the legend, each with a mark of its own."""
    said = {"received", "training", "waiting", "late", "missing", "quarantined", "cancelled", "not enrolled"}
    assert {one.word for one in LEGEND} == said and len({one.kind for one in LEGEND}) == len(said)


def test_a_large_federation_is_cut_and_whoever_is_in_is_left_out_first() -> None:
    names = [f"client-{number:04d}" for number in range(300)]
    parts = [sent(name, START + 50) if name < "client-0290" else absent(name) for name in names]
    rounds = [one_round(number, *parts) for number in range(1, 20)]
    at = ClientActivity(START + 600)
    grid = build_grid(RunSnapshot(history(*rounds), at), names, names, at)
    assert len(grid.rows) == GRID_CLIENTS and grid.more == 300 - GRID_CLIENTS
    assert {row.client for row in grid.rows} >= set(names[290:])
    assert grid.rounds == tuple(range(19, 19 - GRID_ROUNDS, -1)) and len(grid.rows[0].cells) == GRID_ROUNDS


@pytest.mark.anyio
async def test_whoever_signs_is_seen_and_nobody_else(running: Running) -> None:
    async with running() as federation:
        last_calls = federation.app.state.coordinator.last_calls
        [north] = await federation.joined("north")
        assert set(last_calls.seen_times()) == {"north"}
        stranger = type(north)("stranger", north.http, north.declaration)
        assert (await stranger.join()).status_code == 401
        assert set(last_calls.seen_times()) == {"north"}
        before = last_calls.seen_times()["north"]
        federation.clock.pass_the_deadline()
        assert (await north.get("/v1/runs/current")).status_code == 200
        assert last_calls.seen_times()["north"] >= before + 3600.0
