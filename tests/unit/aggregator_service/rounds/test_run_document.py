"""What an earlier version has written of a run is read as what it means now."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from aggregator_service.rounds import transitions
from aggregator_service.rounds.run import CANCELLED, EARLIER, Run, decode_run, differs_in_rows, encode_run
from aggregator_service.storage.records import Receipt
from shared.errors import ConflictError
from shared.method.declaration import Declaration
from shared.protocol.schemas import Cause, RunIn
from shared.protocol.secure.messages import VERSION, CommonTerms, RoundTerms
from shared.protocol.secure.server import SecureRound

RUN = Run("run-1", RunIn(rounds=2, clients=2), 1.0, 61.0, {"north": 1, "south": 1}, phase="open", round=1)


def test_a_cancelled_run_is_neither_failed_nor_active() -> None:
    run = decode_run(encode_run(transitions.fail_run(RUN, None, now=2.0)))
    assert (run.phase, run.reason, run.closed_at, run.active) == ("cancelled", CANCELLED, 2.0, False)
    with pytest.raises(ConflictError, match="run-1 has ended: the operator has cancelled it"):
        run.require_not_ended()


def test_what_was_cancelled_under_an_earlier_version_is_read_as_cancelled() -> None:
    """It wrote a failed run with that reason; another failed run stays one."""
    document = json.loads(encode_run(transitions.fail_run(RUN, CANCELLED, now=2.0)))
    assert document["run"]["phase"] == "failed"
    assert decode_run(json.dumps(document)).phase == "cancelled"
    assert decode_run(encode_run(transitions.fail_run(RUN, "no quorum", now=2.0))).phase == "failed"


@pytest.mark.parametrize("earlier", [2, 3])
@pytest.mark.parametrize("phase", ["open", "closed"])
def test_a_secure_round_of_an_earlier_version_fails_its_run_unless_it_has_ended(phase: Any, earlier: int) -> None:
    """Its messages mean something else by now; what the clients were told of it cannot be kept."""
    digests = dict.fromkeys(("aggregator", "start", "method", "anchor"), "00" * 32)
    declaration = Declaration(strategy="fedavg", tensors=(), scalars=())
    common = CommonTerms(**digests, seed=0, rounds=2)
    terms = RoundTerms(run="run-1", round=1, threshold=3, declaration=declaration, common=common)
    ended = "finished" if phase == "closed" else "open"
    document = json.loads(encode_run(replace(RUN, phase=ended, exchange=SecureRound(terms=terms))))
    assert decode_run(json.dumps(document)).exchange is not None
    document["run"]["exchange"]["terms"]["version"] = earlier
    run = decode_run(json.dumps(document))
    assert run.exchange is None and run.active is False
    assert (run.phase, run.reason) == (("failed", EARLIER) if ended == "open" else ("finished", None))
    document["run"]["exchange"]["terms"] |= {"version": VERSION, "threshold": 0}
    with pytest.raises(ValueError, match="threshold"):
        decode_run(json.dumps(document))


def test_an_update_changes_rows_alone_until_it_ends_the_round() -> None:
    """Each upload would otherwise write all clients' names again."""
    first = transitions.accept_update(RUN, Receipt("run-1", 1, "north", "digest", 1, 2.0))
    last = transitions.accept_update(first, Receipt("run-1", 1, "south", "digest", 1, 3.0))
    assert differs_in_rows(RUN, first) and encode_run(first) == encode_run(RUN)
    assert last.phase == "aggregated" and not differs_in_rows(first, last)
    assert not differs_in_rows(None, RUN)
    assert not differs_in_rows(RUN, transitions.enrol_client(RUN, "east", now=2.0))


@pytest.mark.parametrize("quarantined", [{}, {"south": "operator"}])
def test_a_round_is_complete_without_those_that_are_quarantined(quarantined: dict[str, Cause]) -> None:
    run = replace(RUN, quarantined=quarantined, request=RunIn(rounds=2, clients=2, quorum=1))
    first = transitions.accept_update(run, Receipt("run-1", 1, "north", "digest", 1, 2.0))
    assert first.is_complete is (first.phase == "aggregated") is bool(quarantined)
    assert first.missing == (() if quarantined else ("south",))
