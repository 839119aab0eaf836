"""The phases of a secure round as a pure machine: deadlines, who is waited for, what closes when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregator_service.rounds import transitions
from aggregator_service.rounds.history import run_for_client
from aggregator_service.rounds.run import Run
from aggregator_service.rounds.secure_run import PARTS, Pledge, SumRecord
from aggregator_service.storage.records import Receipt
from shared.errors import NotFoundError, RoundClosedError
from shared.method.declaration import Declaration, TensorSpec
from shared.protocol.schemas import RunIn
from shared.protocol.secure import client
from shared.protocol.secure.messages import PublicKeys
from shared.protocol.secure.server import PHASES
from shared.protocol.signing.keys import new_key

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay")
KEYS = {name: new_key() for name in NAMES}
DECLARATION = Declaration(
    strategy="lpsfed", tensors=(TensorSpec(name="w", shape=(2,)),), scalars=("margin", "rho"), secure=True
)


def begun(count: int, *, quorum: int | None = None, rounds_: int = 2) -> Run:
    request = RunIn(rounds=rounds_, clients=count, quorum=quorum, deadline_seconds=1000.0)
    pledge = Pledge(declaration=DECLARATION, aggregator="0a" * 32, start="0b" * 32)
    return transitions.start_run("run-1", request, clients=frozenset(NAMES[:count]), now=0.0, pledge=pledge)


def keys(run: Run, name: str, **flags: bool) -> PublicKeys:
    assert run.exchange is not None
    return client.begin_secure_round(run.exchange.terms, name, KEYS[name], **flags).message


def after_keys(run: Run, *names: str, now: float = 1.0) -> Run:
    for name in names:
        run = transitions.accept_message(run, keys(run, name), now=now)
    return run


def test_the_parts_of_a_round_s_time_make_the_whole() -> None:
    assert list(PARTS) == list(PHASES) and sum(PARTS.values()) == pytest.approx(1.0)


def test_each_phase_has_its_part_from_its_own_beginning() -> None:
    run = begun(3)
    assert run.deadline == 700.0
    run = after_keys(run, "ada", "bob", "cyd", now=50.0)
    assert run.exchange is not None and (run.exchange.phase, run.deadline) == ("shares", 100.0)


@pytest.mark.parametrize(("count", "threshold"), [(3, 3), (4, 3), (5, 4), (6, 5)])
def test_the_threshold_is_more_than_two_thirds_of_those_who_are_enrolled(count: int, threshold: int) -> None:
    run = begun(count)
    assert run.exchange is not None and run.exchange.terms.threshold == threshold
    assert run_for_client(run, "ada", sequence=1, now=1.0).threshold == threshold


def test_whoever_joins_in_the_first_phase_takes_part_as_long_as_the_threshold_has_room() -> None:
    run = transitions.enrol_client(begun(3), "dan", now=1.0)
    run = after_keys(run, "ada", "bob", "cyd")
    assert run.exchange is not None and run.exchange.phase == "keys"  # dan may still come
    run = transitions.enrol_client(run, "eve", now=1.0)
    run = after_keys(run, "dan")
    assert run.exchange is not None and run.exchange.phase == "shares"  # for eve there is no room
    with pytest.raises(RoundClosedError):
        transitions.accept_message(run, keys(run, "eve"), now=1.0)
    assert run_for_client(run, "eve", sequence=1, now=1.0).standing == "absent"


def test_a_phase_with_enough_closes_at_its_deadline_and_with_too_few_the_run_fails() -> None:
    run = after_keys(begun(4, quorum=3), "ada", "bob", "cyd")
    assert transitions.advance_run(run, 699.0) is run
    closed = transitions.advance_run(run, 700.0)
    assert closed.exchange is not None and (closed.phase, closed.exchange.phase) == ("open", "shares")
    failed = transitions.advance_run(closed, closed.deadline)
    assert (failed.phase, failed.exchange) == ("failed", None)
    assert failed.reason == "round 1: 0 of 3 clients at the deadline of its phase shares, missing ada, bob, cyd"


def test_what_comes_after_the_phase_s_deadline_is_too_late_though_nobody_has_closed_it_yet() -> None:
    run = begun(3)
    with pytest.raises(RoundClosedError):
        transitions.accept_message(run, keys(run, "ada"), now=700.0)


def test_messages_of_strangers_and_of_other_rounds_are_refused() -> None:
    run = begun(3)
    with pytest.raises(NotFoundError):
        transitions.accept_message(run, keys(run, "fay"), now=1.0)
    with pytest.raises(RoundClosedError):
        transitions.accept_message(run, keys(run, "ada").model_copy(update={"round": 2}), now=1.0)
    with pytest.raises(RoundClosedError):
        transitions.accept_message(replace(run, exchange=None), keys(run, "ada"), now=1.0)


def test_a_round_of_an_open_run_has_no_phases() -> None:
    run = transitions.start_run("run-1", RunIn(clients=3), clients=frozenset(NAMES[:3]), now=0.0)
    assert run.exchange is None and run_for_client(run, "ada", sequence=1, now=1.0).threshold is None
    for name in NAMES[:3]:
        run = transitions.accept_update(run, Receipt("run-1", 1, name, "d" * 64, 1, 1.0))
    assert run.phase == "aggregated"


# --- whose sums may be uncovered in one run


def summed(members: str, bearing: str = "") -> SumRecord:
    return SumRecord(members=tuple(members.split()), bearing=tuple(bearing.split()))


def second_round(count: int, *sums: SumRecord, changing_members: bool = False, **changed: object) -> Run:
    """A run whose second round is open; these sums were uncovered in it before."""
    run = begun(count)
    request = run.request.model_copy(update={"changing_members": changing_members})
    assert run.pledge is not None
    pledge = run.pledge.model_copy(update={"sums": sums, **changed})
    return transitions._open_round(replace(run, request=request, pledge=pledge), 2, 1.0)


def test_the_threshold_is_fixed_when_the_first_round_opens() -> None:
    run = begun(5)
    assert run.pledge is not None and run.pledge.threshold == 4
    smaller = transitions._open_round(replace(run, enrolled=dict.fromkeys(NAMES[:3], 1)), 2, 1.0)
    assert smaller.exchange is not None and smaller.exchange.terms.threshold == 4


def test_a_run_fails_before_a_sum_that_would_tell_one_client_s_update_by_difference() -> None:
    run = second_round(4, summed("ada bob cyd dan"))
    run = replace(run, request=run.request.model_copy(update={"quorum": 3}))
    run = after_keys(run, "ada", "bob", "cyd", now=2.0)
    assert run.phase == "open"  # dan may still come
    failed = transitions.advance_run(run, run.deadline)
    assert failed.phase == "failed" and "would tell the update of dan" in (failed.reason or "")


def test_two_may_leave_together() -> None:
    run = second_round(5, summed("ada bob cyd dan eve"))
    assert run.pledge is not None
    run = replace(run, request=run.request.model_copy(update={"quorum": 3}), pledge=run.pledge)
    exchange = run.exchange
    assert exchange is not None and exchange.terms.threshold == 4
    run = second_round(6, summed("ada bob cyd dan eve fay"), threshold=4)
    run = replace(run, request=run.request.model_copy(update={"quorum": 4}))
    closed = transitions.advance_run(after_keys(run, *NAMES[:4], now=2.0), run.deadline)
    assert closed.exchange is not None and closed.exchange.phase == "shares"


@pytest.mark.parametrize("flags", [{"noised": True}, {"changing_members": True}])
def test_one_that_bears_it_may_leave_alone(flags: dict[str, bool]) -> None:
    bearing = summed("ada bob cyd dan", "dan")
    run = second_round(4, bearing, changing_members="changing_members" in flags)
    run = replace(run, request=run.request.model_copy(update={"quorum": 3}))
    closed = transitions.advance_run(after_keys(run, "ada", "bob", "cyd", now=2.0), run.deadline)
    assert closed.exchange is not None and closed.exchange.phase == "shares"


def test_who_joins_after_the_first_sum_waits_for_the_next_run() -> None:
    run = transitions.enrol_client(second_round(4, summed("ada bob cyd"), threshold=3), "dan", now=2.0)
    assert run.awaited == {"ada", "bob", "cyd"} and run_for_client(run, "dan", sequence=1, now=2.0).standing == "absent"
    with pytest.raises(RoundClosedError, match="take part in the next run"):
        transitions.accept_message(run, keys(run, "dan"), now=2.0)
    closed = after_keys(run, "ada", "bob", "cyd", now=2.0)
    assert closed.exchange is not None and closed.exchange.phase == "shares"


def test_with_the_operator_s_and_its_silo_s_word_it_joins_at_once() -> None:
    run = second_round(4, summed("ada bob cyd"), changing_members=True, threshold=3)
    with pytest.raises(RoundClosedError, match="continues without you"):
        transitions.accept_message(run, keys(run, "dan"), now=2.0)
    run = transitions.accept_message(run, keys(run, "dan", changing_members=True), now=2.0)
    closed = after_keys(run, "ada", "bob", "cyd", now=2.0)
    assert closed.exchange is not None and closed.exchange.phase == "shares"


def test_the_silo_s_word_alone_is_not_enough() -> None:
    run = second_round(4, summed("ada bob cyd"), threshold=3)
    with pytest.raises(RoundClosedError, match="continues without you"):
        transitions.accept_message(run, keys(run, "dan", changing_members=True), now=2.0)


def test_a_run_that_begins_where_an_earlier_one_began_needs_its_members() -> None:
    """Run-1 with four clients, run-2 with the same seed and three of them: 4 mean1 - 3 mean2 is the fourth's update."""
    run = second_round(3, earlier=("ada", "bob", "cyd", "dan"))
    failed = after_keys(run, "ada", "bob", "cyd", now=2.0)
    assert failed.phase == "failed" and "start a run with another seed" in (failed.reason or "")
    same = second_round(3, earlier=("ada", "bob", "cyd"))
    assert after_keys(same, "ada", "bob", "cyd", now=2.0).phase == "open"
