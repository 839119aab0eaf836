"""Repeated questions are counted, whatever is new or has a body is written, and a crash loses little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_service.boundary import call_records
from client_service.boundary.call_attempts import list_attempts
from client_service.boundary.call_records import COUNTED_SECONDS, MOST_SERIES, POLLS, CallRecorder, PendingCall
from client_service.boundary.ledger import Ledger
from tests.support.hasty import VirtualTime

SAID = {"to": "http://aggregator", "bytes": 0, "sha256": "00"}
NOTHING = {"status": 204, "bytes": 3, "sha256": "11"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def calls(ledger: Ledger, time: VirtualTime) -> CallRecorder:
    return CallRecorder(ledger, clock=time.clock)


def begun(calls: CallRecorder, call: str = "current", query: str = "wait=20", **others: Any) -> PendingCall:
    return calls.begin({"call": call, **SAID, "head": {"query": query}, **others})


def asked(calls: CallRecorder, call: str = "current", query: str = "wait=20", *, told: str = "204") -> str:
    call = begun(calls, call, query)
    calls.end(call, NOTHING, fingerprint=told)
    return call.nonce


def kinds(ledger: Ledger) -> list[str]:
    return [entry["kind"] for entry in ledger.entries()]


def test_repetitions_become_one_line_before_anything_else_is_written(calls: CallRecorder, ledger: Ledger) -> None:
    nonces = [asked(calls) for _ in range(5)]
    assert kinds(ledger) == ["intent", "outcome"] and len(set(nonces)) == 5
    begun(calls, "update", "", bytes=9)
    assert kinds(ledger) == ["intent", "outcome", POLLS, "intent"]
    line = list(ledger.entries())[2]
    assert (line["of"], line["n"], line["call"], line["status"], line["bytes"]) == (1, 4, "current", 204, 12)
    assert line["from"] <= line["to"] and ledger.verify() == 4
    once, four, update = list_attempts(ledger.entries())
    assert (once.times, four.times, four.of, four.answer_bytes, update.bytes) == (1, 4, 1, 12, 9)


def test_another_question_another_query_and_any_body_are_written(calls: CallRecorder, ledger: Ledger) -> None:
    asked(calls)
    asked(calls, query="wait=20&after=3")
    asked(calls, "personalized")
    for _ in range(2):
        call = begun(calls, "join", "", bytes=5)
        calls.end(call, NOTHING, fingerprint="204")
    assert kinds(ledger) == ["intent", "outcome"] * 5


def test_another_answer_is_written_by_itself_and_with_its_nonce(calls: CallRecorder, ledger: Ledger) -> None:
    asked(calls)
    asked(calls)
    nonce = asked(calls, told="200 news")
    assert kinds(ledger) == ["intent", "outcome", POLLS, "intent", "outcome"]
    assert list_attempts(ledger.entries())[-1].nonce == nonce
    assert asked(calls, told="200 news") != nonce and asked(calls) != nonce
    assert len(kinds(ledger)) == 5  # both answers are known by now


def test_a_repetition_that_is_cut_off_is_an_intent_without_an_outcome(calls: CallRecorder, ledger: Ledger) -> None:
    asked(calls)
    calls.write_intent(begun(calls))
    assert kinds(ledger) == ["intent", "outcome", "intent"]
    assert list_attempts(ledger.entries())[-1].status is None


def test_calls_under_way_at_the_same_time_are_told_apart(calls: CallRecorder, ledger: Ledger) -> None:
    one, two = begun(calls), begun(calls, "personalized")
    calls.end(two, NOTHING, fingerprint="204")
    calls.end(one, NOTHING, fingerprint="204")
    again, other = begun(calls), begun(calls)
    assert again.nonce != other.nonce
    calls.end(other, {"error": "ConnectError"}, fingerprint="ConnectError")
    calls.end(again, NOTHING, fingerprint="204")
    calls.flush()
    found = [(one.call, one.status, one.error, one.times) for one in list_attempts(ledger.entries())]
    assert found == [
        ("current", 204, None, 1),
        ("personalized", 204, None, 1),
        ("current", None, "ConnectError", 1),
        ("current", 204, None, 1),
    ]


def test_no_more_are_unwritten_than_a_crash_may_lose(
    calls: CallRecorder, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_records, "MOST_COUNTED", 10)
    for _ in range(1 + 25):
        asked(calls)
    lines = [entry["n"] for entry in ledger.entries() if entry["kind"] == POLLS]
    assert lines == [10, 10]
    calls.flush()
    calls.flush()
    assert [entry["n"] for entry in ledger.entries() if entry["kind"] == POLLS] == [10, 10, 5]


def test_none_is_unwritten_for_long(calls: CallRecorder, ledger: Ledger, time: VirtualTime) -> None:
    asked(calls)
    for _ in range(3):
        asked(calls)
        time.now += COUNTED_SECONDS / 2
    assert [entry["n"] for entry in ledger.entries() if entry["kind"] == POLLS] == [3]


def test_what_is_remembered_is_bounded_and_loses_no_count(calls: CallRecorder, ledger: Ledger) -> None:
    for number in range(3 * MOST_SERIES):
        for _ in range(3):
            asked(calls, query=f"after={number}")
    calls.flush()
    assert len(calls._series) <= MOST_SERIES >= len(calls._nonces)
    assert sum(one.times for one in list_attempts(ledger.entries())) == 9 * MOST_SERIES
