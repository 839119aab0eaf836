"""Arrivals paired with what was sent: each once, by its very bytes, or by its place where it was cut short."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from audit.checks.records import ReportedBody, bodies_from_ledger, bodies_from_probes, match_bodies
from audit.evidence.evidence import ProbeSending
from client_service.boundary.call_attempts import Attempt
from shared.protocol.schemas import ArrivalOut

NOTHING = hashlib.sha256(b"").hexdigest()
ONE, TWO = "1" * 64, "2" * 64


def arrival(digest: str = ONE, size: int = 100, status: int = 201, **what: Any) -> ArrivalOut:
    said = {"sequence": 1, "time": "2026-01-01", "client": "client-1", "call": "update", "run": "run-1", "round": 1}
    return ArrivalOut.model_validate({**said, "digest": digest, "size": size, "status": status, **what})


def unread(status: int) -> ArrivalOut:
    """Refused before its body was read."""
    return arrival(NOTHING, 0, status)


def left(digest: str = ONE, status: int | None = 201, source: Any = "ledger", **what: Any) -> ReportedBody:
    said = {"call": "update", "run": "run-1", "round": 1, "bytes": 100, **what}
    return ReportedBody(source=source, sha256=digest, status=status, **said)


def test_what_was_sent_and_arrived_leaves_nothing_over() -> None:
    sent = [left(), left(TWO), left(call="join", run=None, round=None, status=200)]
    came = [arrival(TWO), arrival(), arrival(call="join", run=None, round=None, status=200)]
    found = match_bodies(came, sent)
    assert len(found.pairs) == 3 and (found.outside, found.unseen, found.lost) == ((), (), ())


def test_each_arrival_needs_a_sending_of_its_own() -> None:
    assert match_bodies([arrival(), arrival()], [left()]).outside == (arrival(),)
    assert match_bodies([arrival()], [left(), left()]).unseen == (left(),)


@pytest.mark.parametrize(
    "other",
    [
        arrival(TWO),
        arrival(size=99),
        arrival(run="run-2"),
        arrival(round=2),
        arrival(call="join"),
        arrival(TWO, status=422),
        arrival(TWO, 101, 422),
    ],
)
def test_another_body_or_another_place_is_not_the_same(other: ArrivalOut) -> None:
    found = match_bodies([other], [left(status=other.status)])
    assert found.outside == (other,) and found.pairs == ()


def test_an_answer_that_was_lost_is_no_body_that_was_lost() -> None:
    """The first attempt arrived and its answer did not; the second one was told that it came before."""
    found = match_bodies([arrival(), arrival(status=200)], [left(status=None), left(status=200)])
    assert len(found.pairs) == 2 and found.outside == ()
    found = match_bodies([arrival()], [left(status=None), left(status=201), left(status=None)])
    assert (len(found.pairs), found.unseen, len(found.lost)) == (1, (), 2)


def test_what_somebody_on_the_way_answered_may_have_arrived_or_not() -> None:
    assert match_bodies([arrival()], [left(status=502)]).outside == ()
    assert match_bodies([], [left(status=502)]).lost == (left(status=502),)
    assert match_bodies([arrival(status=422)], [left(status=201)]).unseen == (left(status=201),)


def test_a_body_that_was_refused_unread_is_known_by_its_place_and_its_answer() -> None:
    late = left(status=409)
    found = match_bodies([unread(409)], [late])
    assert found.refused_from("ledger") == [unread(409)] and found.refused_from("probes") == []
    assert match_bodies([unread(409), unread(409)], [late]).outside == (unread(409),)
    assert match_bodies([unread(403)], [late]).outside == (unread(403),)
    assert match_bodies([unread(201)], [late]).outside == (unread(201),)
    assert match_bodies([unread(413)], [left(status=None)]).outside == ()  # the connection was cut before the answer


def test_the_same_bytes_sent_twice_are_told_apart_by_their_answers() -> None:
    """One read and in conflict, one to another's place and unread: both of each are needed."""
    sent = [left(status=409, source="probes"), left(status=403, source="probes")] * 2
    found = match_bodies([arrival(status=409), unread(403), arrival(status=409), unread(403)], sent)
    assert len(found.pairs) == 4 and found.outside == ()


def test_a_probe_accounts_for_a_refusal_alone() -> None:
    probe = ProbeSending(call="update", run="run-1", round=1, bytes=100, sha256=ONE, status=422)
    assert match_bodies([arrival(status=422)], bodies_from_probes([probe])).refused_from("probes") == [
        arrival(status=422)
    ]
    assert match_bodies([arrival()], bodies_from_probes([probe])).outside == (arrival(),)
    assert match_bodies([arrival()], bodies_from_probes([probe.model_copy(update={"status": 201})])).outside == (
        arrival(),
    )
    assert match_bodies([], bodies_from_probes([probe])).lost == ()  # sent after the record was read


def test_of_a_ledger_only_what_has_a_body_is_looked_for() -> None:
    attempts = [Attempt(1, "", call, "run-1", 1, 100, ONE, status=201) for call in ("anchor", "update", "model")]
    assert [one.call for one in bodies_from_ledger(attempts)] == ["update"]


def test_a_body_that_was_read_to_its_end_is_known_by_its_bytes_alone() -> None:
    leak = arrival(TWO, 60, 422)  # a piece of it, says whoever sent it; the aggregator has read it whole
    for said in (left(status=422), left(status=None)):
        assert match_bodies([leak], [said]).outside == (leak,)


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_body_that_was_cut_off_may_be_a_piece(status: int) -> None:
    assert match_bodies([arrival(TWO, 60, status)], [left(status=None)]).outside == ()


@pytest.mark.parametrize("said", [502, 504])
def test_what_a_proxy_answers_is_no_answer_of_the_aggregator(said: int) -> None:
    assert match_bodies([unread(409)], [left(status=said)]).outside == ()


def test_a_question_that_says_too_much_is_the_probes_only_with_its_own_answer() -> None:
    elsewhere = {"call": "other", "run": None, "round": None}
    sent = [left(NOTHING, 422, "probes", bytes=0, **elsewhere)]
    assert match_bodies([arrival(NOTHING, 0, 422, **elsewhere)], sent).outside == ()
    assert match_bodies([arrival(NOTHING, 0, 404, **elsewhere)], sent).outside != ()
