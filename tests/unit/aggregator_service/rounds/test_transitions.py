"""The state machine of runs and rounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator_service.rounds import transitions
from aggregator_service.rounds.history import run_for_client
from aggregator_service.rounds.run import Run
from aggregator_service.storage.records import Receipt
from shared.errors import ConflictError, NotFoundError, ProtocolError, RoundClosedError
from shared.protocol.schemas import RunIn

PAIR = frozenset({"north", "south"})


def begin(clients: frozenset[str] = PAIR, **request: object) -> Run:
    values = {"rounds": 2, "clients": 2, "deadline_seconds": 100.0} | request
    return transitions.start_run("run-1", RunIn.model_validate(values), clients=clients, now=0.0)


def receipt(client: str, *, number: int = 1, digest: str = "d", at: float = 1.0) -> Receipt:
    return Receipt("run-1", number, client, digest, 10, at)


def test_a_run_waits_until_so_many_clients_have_joined_then_opens_round_1() -> None:
    waiting = begin(frozenset({"north"}))
    assert (waiting.phase, waiting.round) == ("waiting", 0)
    opened = transitions.enrol_client(waiting, "south", now=5.0)
    assert (opened.phase, opened.round, opened.deadline) == ("open", 1, 105.0)


def test_a_run_that_waits_in_vain_fails_and_says_how_many_of_how_many_came() -> None:
    failed = transitions.advance_run(begin(frozenset({"north"})), 100.0)
    assert failed.phase == "failed"
    assert failed.reason == "1 of 2 clients had joined at the deadline"


def test_a_round_closes_as_soon_as_every_enrolled_client_has_sent() -> None:
    first = transitions.accept_update(begin(), receipt("north"))
    assert (first.phase, first.missing) == ("open", ("south",))
    closed = transitions.accept_update(first, receipt("south", at=2.0))
    assert (closed.phase, closed.closed_at) == ("aggregated", 2.0)


def test_after_the_last_round_the_run_is_finished() -> None:
    run = begin()
    for number in (1, 2):
        for client in sorted(PAIR):
            run = transitions.accept_update(run, receipt(client, number=number))
        run = transitions.finish_round(run, 3.0)
    assert (run.phase, run.round) == ("finished", 2)
    assert run.is_aggregated(1)
    assert run.is_aggregated(2)


def test_at_the_deadline_a_quorum_is_enough() -> None:
    run = transitions.accept_update(begin(quorum=1), receipt("north"))
    assert transitions.advance_run(run, 99.9) is run
    assert transitions.advance_run(run, 100.0).phase == "aggregated"


def test_without_a_quorum_at_the_deadline_the_run_fails_and_names_who_is_missing() -> None:
    failed = transitions.advance_run(transitions.accept_update(begin(), receipt("north")), 100.0)
    assert (failed.phase, failed.reason) == ("failed", "round 1: 1 of 2 updates at the deadline, missing south")


def closed(**request: object) -> Run:
    return transitions.accept_update(
        transitions.accept_update(begin(**request), receipt("north")), receipt("south", at=2.0)
    )


def test_an_update_that_the_disk_has_lost_is_asked_for_again_while_the_round_can_wait() -> None:
    opened = transitions.reopen_damaged_round(closed(), ["north"], now=50.0)
    assert (opened.phase, opened.missing, opened.closed_at) == ("open", ("north",), None)
    assert [opened.must_resend(client) for client in ("north", "south")] == [True, False]
    again = transitions.accept_update(opened, receipt("north", digest="other", at=60.0))
    assert (again.phase, again.must_resend("north")) == ("aggregated", False)
    assert transitions.finish_round(again, 61.0).lost == frozenset()


def test_past_its_deadline_a_round_does_without_what_is_lost_where_the_rest_is_a_quorum() -> None:
    assert transitions.reopen_damaged_round(closed(quorum=1), ["north"], now=100.0).phase == "aggregated"
    failed = transitions.reopen_damaged_round(closed(), ["north"], now=100.0)
    assert failed.reason == (
        "round 1: 1 of 2 updates at the deadline, missing north; "
        "the disk had damaged what north had sent: check it, then start a new run"
    )


def test_only_a_closed_round_loses_updates() -> None:
    with pytest.raises(RoundClosedError, match="expected an aggregated round"):
        transitions.reopen_damaged_round(begin(), ["north"], now=1.0)


def test_a_quorum_above_the_number_of_clients_is_refused_at_the_start() -> None:
    with pytest.raises(ProtocolError, match="expected at most clients = 2, got 3"):
        begin(quorum=3)


def test_the_same_update_again_changes_nothing() -> None:
    run = transitions.accept_update(begin(), receipt("north"))
    assert transitions.accept_update(run, receipt("north", at=9.0)) is run


def test_another_update_for_the_same_round_is_a_conflict() -> None:
    with pytest.raises(ConflictError, match="expected digest d as before, got other"):
        transitions.accept_update(
            transitions.accept_update(begin(), receipt("north")), receipt("north", digest="other")
        )


def test_an_exact_repetition_of_an_earlier_round_is_still_answered() -> None:
    run = begin()
    for client in sorted(PAIR):
        run = transitions.accept_update(run, receipt(client))
    second = transitions.finish_round(run, 3.0)
    assert transitions.accept_update(second, receipt("north"), earlier=receipt("north")) is second
    with pytest.raises(RoundClosedError, match=r"expected round 2 \(open\) of run-1, got round 1"):
        transitions.accept_update(second, receipt("north"))


@pytest.mark.parametrize("number", [2, 3])
def test_a_round_that_has_not_opened_takes_nothing(number: int) -> None:
    with pytest.raises(RoundClosedError):
        transitions.accept_update(begin(), receipt("north", number=number))


def test_an_update_after_the_deadline_is_too_late_even_before_anybody_noticed_the_deadline() -> None:
    with pytest.raises(RoundClosedError, match="closed at its deadline"):
        transitions.accept_update(begin(), receipt("north", at=100.0))


def test_a_client_that_is_not_enrolled_is_not_known() -> None:
    with pytest.raises(NotFoundError, match="'west' is not enrolled"):
        transitions.accept_update(begin(), receipt("west"))


def test_a_client_that_joins_late_is_expected_from_the_current_round_on() -> None:
    run = transitions.enrol_client(transitions.accept_update(begin(), receipt("north")), "west", now=1.0)
    assert run.missing == ("south", "west")


def test_nobody_enrols_in_a_run_that_has_ended() -> None:
    failed = transitions.fail_run(begin(), "because", now=1.0)
    assert transitions.enrol_client(failed, "west", now=2.0) is failed


def test_a_client_sees_its_own_standing_and_only_counts_of_the_others() -> None:
    run = transitions.accept_update(begin(), receipt("north"))
    north, south = (run_for_client(run, name, sequence=4, now=40.0) for name in ("north", "south"))
    assert (north.standing, south.standing) == ("received", "expected")
    assert (north.joined, north.received, north.seconds_left) == (2, 1, 60.0)
    assert "south" not in north.model_dump_json()


NAMES = ("north", "south", "west")
EVENTS = st.one_of(
    st.tuples(st.just("join"), st.sampled_from(NAMES)),
    st.tuples(st.just("send"), st.sampled_from(NAMES)),
    st.tuples(st.just("sleep"), st.sampled_from((1.0, 60.0))),
    st.tuples(st.just("lose"), st.sampled_from(NAMES)),
    st.tuples(st.just("proceed"), st.just("")),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=30), st.integers(1, 2))
def test_whatever_happens_a_run_never_closes_without_quorum_and_never_goes_back(
    events: list[tuple[str, str | float]], quorum: int
) -> None:
    run, now = begin(frozenset({"north"}), quorum=quorum), 0.0
    for kind, value in events:
        before = run
        now += value if isinstance(value, float) else 0.0
        try:
            run = happen(run, kind, str(value), now)
        except (RoundClosedError, NotFoundError):
            assert run is before
        assert run.round >= before.round
        assert before.active or run is before
        assert run.phase != "aggregated" or len(run.receipts) >= quorum
        assert (run.reason is not None) == (run.phase == "failed")
        assert run.receipts.keys() <= run.clients and run.lost <= run.clients


def happen(run: Run, kind: str, value: str, now: float) -> Run:
    if kind == "join":
        return transitions.enrol_client(run, value, now=now)
    if kind == "send":
        return transitions.accept_update(run, receipt(value, number=run.round, at=now))
    if kind == "lose":
        return transitions.reopen_damaged_round(run, {value} & run.receipts.keys(), now=now)
    return transitions.finish_round(run, now) if kind == "proceed" else transitions.advance_run(run, now)
