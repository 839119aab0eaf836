"""The phases of a secure round as a pure machine: deadlines, who is waited for, what closes when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregator_service import rounds
from aggregator_service.runs import Receipt, Run
from aggregator_service.secure.phases import PARTS
from aggregator_service.views import view
from shared.errors import NotFoundError, RoundClosedError
from shared.schemas import Declaration, RunIn, TensorSpec
from shared.secure import client
from shared.secure.messages import PublicKeys
from shared.secure.server import PHASES

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay")
DECLARATION = Declaration(
    strategy="lpsfed", tensors=(TensorSpec(name="w", shape=(2,)),), scalars=("margin", "rho"), secure=True
)


def begun(count: int, *, quorum: int | None = None, rounds_: int = 2) -> Run:
    request = RunIn(rounds=rounds_, clients=count, quorum=quorum, deadline_seconds=1000.0)
    return rounds.start("run-1", request, clients=frozenset(NAMES[:count]), now=0.0, secure=DECLARATION)


def keys(run: Run, name: str) -> PublicKeys:
    assert run.exchange is not None
    return client.begin(run.exchange.terms, name)[1]


def after_keys(run: Run, *names: str, now: float = 1.0) -> Run:
    for name in names:
        run = rounds.take(run, keys(run, name), now=now)
    return run


def test_the_parts_of_a_round_s_time_make_the_whole() -> None:
    assert list(PARTS) == list(PHASES) and sum(PARTS.values()) == pytest.approx(1.0)


def test_each_phase_has_its_part_from_its_own_beginning() -> None:
    run = begun(3)
    assert run.deadline == 700.0
    run = after_keys(run, "ada", "bob", "cyd", now=50.0)
    assert run.exchange is not None and (run.exchange.phase, run.deadline) == ("shares", 150.0)


@pytest.mark.parametrize(("count", "threshold"), [(3, 3), (4, 3), (5, 4), (6, 5)])
def test_the_threshold_is_more_than_two_thirds_of_those_who_are_enrolled(count: int, threshold: int) -> None:
    run = begun(count)
    assert run.exchange is not None and run.exchange.terms.threshold == threshold
    assert view(run, "ada", sequence=1, now=1.0).threshold == threshold


def test_whoever_joins_in_the_first_phase_takes_part_as_long_as_the_threshold_has_room() -> None:
    run = rounds.enrol(begun(3), "dan", now=1.0)
    run = after_keys(run, "ada", "bob", "cyd")
    assert run.exchange is not None and run.exchange.phase == "keys"  # dan may still come
    run = rounds.enrol(run, "eve", now=1.0)
    run = after_keys(run, "dan")
    assert run.exchange is not None and run.exchange.phase == "shares"  # for eve there is no room
    with pytest.raises(RoundClosedError):
        rounds.take(run, keys(run, "eve"), now=1.0)
    assert view(run, "eve", sequence=1, now=1.0).standing == "absent"


def test_a_phase_with_enough_closes_at_its_deadline_and_with_too_few_the_run_fails() -> None:
    run = after_keys(begun(4, quorum=3), "ada", "bob", "cyd")
    assert rounds.advance(run, 699.0) is run
    closed = rounds.advance(run, 700.0)
    assert closed.exchange is not None and (closed.phase, closed.exchange.phase) == ("open", "shares")
    failed = rounds.advance(closed, closed.deadline)
    assert (failed.phase, failed.exchange) == ("failed", None)
    assert failed.reason == "round 1: 0 of 3 clients at the deadline of its phase shares, missing ada, bob, cyd"


def test_what_comes_after_the_phase_s_deadline_is_too_late_though_nobody_has_closed_it_yet() -> None:
    run = begun(3)
    with pytest.raises(RoundClosedError):
        rounds.take(run, keys(run, "ada"), now=700.0)


def test_messages_of_strangers_and_of_other_rounds_are_refused() -> None:
    run = begun(3)
    with pytest.raises(NotFoundError):
        rounds.take(run, keys(run, "fay"), now=1.0)
    with pytest.raises(RoundClosedError):
        rounds.take(run, keys(run, "ada").model_copy(update={"round": 2}), now=1.0)
    with pytest.raises(RoundClosedError):
        rounds.take(replace(run, exchange=None), keys(run, "ada"), now=1.0)


def test_a_round_of_an_open_run_has_no_phases() -> None:
    run = rounds.start("run-1", RunIn(clients=3), clients=frozenset(NAMES[:3]), now=0.0)
    assert run.exchange is None and view(run, "ada", sequence=1, now=1.0).threshold is None
    for name in NAMES[:3]:
        run = rounds.accept(run, Receipt("run-1", 1, name, "d" * 64, 1, 1.0))
    assert run.phase == "aggregated"
