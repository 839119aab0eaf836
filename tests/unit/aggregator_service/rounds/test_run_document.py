"""What an earlier version has written of a run is read as what it means now."""

from __future__ import annotations

import json

import pytest

from aggregator_service.rounds import transitions
from aggregator_service.rounds.run import CANCELLED, Run, decode_run, encode_run
from shared.errors import ConflictError
from shared.protocol.schemas import RunIn

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
