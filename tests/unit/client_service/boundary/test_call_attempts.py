"""Entries of a ledger, told as calls with what left and what came back."""

from __future__ import annotations

from pathlib import Path

from client_service.boundary.call_attempts import list_attempts
from client_service.boundary.ledger import Ledger


def test_an_intent_and_its_outcome_are_one_attempt_in_the_order_of_the_intents(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    fields = {
        "run": "run-1",
        "round": "2",
        "bytes": 9,
        "sha256": "ab",
        "tensors": [{"name": "w"}],
        "scalars": {"m": 1.0},
    }
    first = ledger.append("intent", call="update", **fields)
    second = ledger.append("intent", call="current", bytes=0, sha256="cd")
    ledger.append("outcome", of=second, status=200, bytes=5, sha256="ef")
    ledger.append("outcome", of=first, status=201, bytes=7, sha256="01", receipt={"digest": "ab"})
    update, poll = list_attempts(ledger.entries())
    assert (update.call, update.run, update.round, update.bytes, update.status) == ("update", "run-1", 2, 9, 201)
    assert (update.tensors, update.scalars, update.receipt) == (({"name": "w"},), {"m": 1.0}, {"digest": "ab"})
    assert (poll.call, poll.round, poll.answer_bytes, poll.answer_sha256) == ("current", None, 5, "ef")


def test_a_call_that_failed_or_was_cut_short_has_no_answer(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    lost = ledger.append("intent", call="join", bytes=3, sha256="ab")
    ledger.append("outcome", of=lost, error="ConnectError")
    ledger.append("intent", call="join", bytes=3, sha256="ab")
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('no JSON\n{"kind":"outcome"}\n{"kind":"intent"}\n')
    found = list_attempts(ledger.entries())
    assert [(one.call, one.status, one.error, one.receipt) for one in found] == [
        ("join", None, "ConnectError", None),
        ("join", None, None, None),
        ("", None, None, None),  # a damaged entry is shown, not skipped
    ]
