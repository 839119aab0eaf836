"""Shutting out and letting in, as the pure state machine knows them."""

from __future__ import annotations

import pytest

from aggregator_service.rounds import secure_run, transitions
from aggregator_service.rounds.history import run_for_client
from aggregator_service.rounds.run import Run, needed_updates, require_quorum
from aggregator_service.rounds.secure_run import Pledge
from aggregator_service.rounds.transitions import quarantine_clients, readmit_client
from aggregator_service.storage.records import Receipt
from shared.errors import ProtocolError, QuarantinedError
from shared.method.declaration import Declaration, TensorSpec
from shared.protocol.schemas import Cause, RunIn
from shared.protocol.secure import client
from shared.protocol.signing.keys import new_key

THREE = frozenset({"north", "south", "west"})
WEST: dict[str, Cause] = {"west": "operator"}


def begin(clients: frozenset[str] = THREE, **request: object) -> Run:
    values = {"rounds": 2, "clients": 3, "deadline_seconds": 100.0} | request
    return transitions.start_run("run-1", RunIn.model_validate(values), clients=clients, now=0.0)


def sent(run: Run, *clients: str, at: float = 1.0) -> Run:
    for name in clients:
        run = transitions.accept_update(run, Receipt("run-1", run.round, name, "d", 10, at))
    return run


def test_of_whom_is_shut_out_nothing_is_taken_and_nothing_awaited() -> None:
    run = quarantine_clients(begin(), WEST, now=1.0)
    assert (run.phase, run.missing, run.quorum, run.awaited) == (
        "open",
        ("north", "south"),
        2,
        frozenset({"north", "south"}),
    )
    with pytest.raises(QuarantinedError, match="you are quarantined: the operator decided it"):
        sent(run, "west")
    assert run_for_client(run, "west", sequence=0, now=1.0).standing == "quarantined"
    assert sent(run, "north", "south").phase == "aggregated"


@pytest.mark.parametrize("cause", ["refusals", "distance", "operator"])
def test_what_is_said_names_nobody(cause: Cause) -> None:
    run = quarantine_clients(begin(), {"west": cause}, now=1.0)
    with pytest.raises(QuarantinedError) as raised:
        sent(run, "west")
    assert not any(name in str(raised.value) for name in ("north", "south"))


def test_a_round_that_waited_for_that_client_alone_is_closed_and_its_update_is_not_used() -> None:
    closed = quarantine_clients(sent(begin(), "north", "south"), WEST, now=7.0)
    assert (closed.phase, closed.closed_at) == ("aggregated", 7.0)
    assert quarantine_clients(sent(begin(), "west", "north"), WEST, now=7.0).receipts.keys() == {"north"}


def test_a_closed_round_holds_without_it_as_long_as_there_are_enough() -> None:
    closed = sent(begin(), "north", "south", "west")
    assert closed.phase == "aggregated"
    after = quarantine_clients(closed, WEST, now=9.0)
    assert (after.phase, set(after.receipts)) == ("aggregated", {"north", "south"})
    fixed = sent(begin(quorum=3), "north", "south", "west")
    failed = quarantine_clients(fixed, WEST, now=9.0)
    assert (failed.phase, failed.reason) == (
        "failed",
        "round 1: 2 clients are left that are not quarantined, expected 3 or more",
    )


def test_past_its_deadline_a_round_that_has_too_few_left_fails_as_any_other() -> None:
    late = transitions.advance_run(sent(begin(quorum=2), "north", "west"), 100.0)
    assert late.phase == "aggregated"
    failed = quarantine_clients(late, WEST, now=101.0)
    assert failed.reason == "round 1: 1 of 2 updates at the deadline, missing south"


def test_a_waiting_run_does_not_count_it() -> None:
    waiting = quarantine_clients(begin(frozenset({"north", "west"})), WEST, now=1.0)
    assert transitions.enrol_client(waiting, "south", now=2.0).phase == "waiting"
    assert readmit_client(transitions.enrol_client(waiting, "south", now=2.0), "west", now=3.0).phase == "open"
    assert transitions.advance_run(waiting, 100.0).reason == "1 of 3 clients had joined at the deadline"


def test_an_ended_run_only_remembers_it() -> None:
    failed = transitions.fail_run(sent(begin(), "north", "west"), "because", now=2.0)
    after = quarantine_clients(failed, WEST, now=3.0)
    assert (after.reason, after.receipts, after.quarantined) == ("because", failed.receipts, WEST)


def test_what_the_disk_has_lost_is_not_asked_for_again_of_one_that_is_shut_out() -> None:
    lost = transitions.reopen_damaged_round(sent(begin(), "north", "south", "west"), ["west"], now=5.0)
    assert lost.must_resend("west")
    after = quarantine_clients(lost, WEST, now=6.0)
    assert (after.phase, after.must_resend("west")) == ("aggregated", False)


def test_one_that_is_let_in_is_asked_again_for_what_was_not_used_in_the_round_that_is_open() -> None:
    open_ = readmit_client(quarantine_clients(sent(begin(), "north", "west"), WEST, now=2.0), "west", now=3.0)
    assert (open_.missing, open_.must_resend("west"), open_.must_resend("south")) == (("south", "west"), True, False)
    closed = sent(open_, "south", "west")
    assert (closed.phase, transitions.finish_round(closed, 4.0).readmitted) == ("aggregated", frozenset())
    late = transitions.advance_run(open_, 100.0)
    assert late.reason == "round 1: 1 of 3 updates at the deadline, missing south, west"  # no word of a disk


def test_the_next_round_does_not_wait_for_it_either_until_it_is_let_in() -> None:
    second = transitions.finish_round(quarantine_clients(sent(begin(), "north", "south", "west"), WEST, now=2.0), 3.0)
    assert (second.round, second.missing) == (2, ("north", "south"))
    again = readmit_client(second, "west", now=4.0)
    assert (again.missing, again.quorum, again.quarantined) == (("north", "south", "west"), 3, {})


def secure(clients: frozenset[str]) -> Run:
    tensors = (TensorSpec(name="w", shape=(2,)),)
    declaration = Declaration(strategy="fedavg", tensors=tensors, scalars=(), secure=True)
    request = RunIn.model_validate({"rounds": 2, "clients": len(clients)})
    pledge = Pledge(declaration=declaration, aggregator="0a" * 32, start="0b" * 32)
    return transitions.start_run("run-1", request, clients=clients, now=0.0, pledge=pledge)


def test_a_secure_round_asks_it_for_no_keys_and_takes_none_of_it() -> None:
    run = quarantine_clients(secure(THREE | {"east"}), WEST, now=1.0)
    assert run.exchange is not None and run.phase == "open"
    assert secure_run.expected_clients(run.exchange, run.awaited) == ("east", "north", "south")
    assert run_for_client(run, "west", sequence=0, now=1.0).standing == "quarantined"
    assert run_for_client(run, "east", sequence=0, now=1.0).standing == "expected"
    keys = client.begin_secure_round(run.exchange.terms, "west", new_key()).message
    with pytest.raises(QuarantinedError):
        transitions.accept_message(run, keys, now=2.0)


@pytest.mark.parametrize(
    ("request_", "awaited", "needed"),
    [
        ({"clients": 5}, 5, 5),
        ({"clients": 5}, 3, 3),
        ({"clients": 2}, 5, 2),
        ({"clients": 5}, 0, 1),
        ({"clients": 5, "quorum": 4}, 3, 4),
        ({"clients": 6, "method": {"aggregate": "krum", "tolerated": 1}}, 3, 5),
    ],
)
def test_how_many_updates_a_round_needs(request_: dict[str, object], awaited: int, needed: int) -> None:
    assert needed_updates(RunIn.model_validate(request_), awaited) == needed


def test_a_run_whose_rounds_could_close_with_too_few_to_aggregate_is_refused() -> None:
    words = r"quorum: expected 5 or more with aggregate = krum, tolerated = 1, got 4"
    asked = {"clients": 5, "quorum": 4, "method": {"aggregate": "krum", "tolerated": 1}}
    with pytest.raises(ProtocolError, match=words):
        require_quorum(RunIn.model_validate(asked))
