"""A ledger is read on bit by bit, checked again, and never taken on trust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_service.boundary.ledger import STRIDE, Ledger
from client_service.pages import ledger_view as subject
from client_service.pages.ledger_view import CallTally, LedgerReader, Summary, list_entries
from shared.method.declaration import Declaration, TensorSpec

DECLARATION = Declaration(strategy="lpsfed", tensors=(TensorSpec(name="w", shape=(2, 3)),), scalars=("rho",))
TENSOR = {"name": "w", "dtype": "F32", "shape": [2, 3], "bytes": 24, "sha256": "ab"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


@pytest.fixture
def bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "READ", 4)
    monkeypatch.setattr(subject, "CHECKED", 3)


def asked(ledger: Ledger, call: str, status: int | None = 200, **fields: Any) -> int:
    """One call on record; without a status it has no outcome."""
    intent = ledger.append("intent", call=call, **({"bytes": 0, "sha256": "00"} | fields))
    if status is not None:
        ledger.append("outcome", of=intent, status=status, bytes=7, sha256="cd")
    return intent


def sent(ledger: Ledger, number: int, status: int | None = 201, **fields: Any) -> int:
    what = {"bytes": 30, "sha256": "ef", "tensors": [TENSOR], "scalars": {"rho": 0.5}} | fields
    return asked(ledger, "update", status, run="run-1", round=str(number), **what)


def totals(summary: Summary) -> dict[str, CallTally]:
    return {total.call: total for total in summary.totals}


def settled(record: LedgerReader) -> Summary:
    """Look until all is read and has been checked again."""
    return [record.update() for _ in range(30)][-1]


@pytest.mark.usefixtures("bit_by_bit")
def test_calls_that_a_line_counts_are_counted_and_not_listed(ledger: Ledger) -> None:
    first = asked(ledger, "personalized", 204, run="run-1", round="1")
    same = {"call": "personalized", "run": "run-1", "round": "1", "status": 204}
    ledger.append("polls", of=first, **same, n=300, bytes=0, **{"from": "a", "to": "b"})
    found = settled(LedgerReader(ledger, DECLARATION))
    assert totals(found)["personalized"] == CallTally("personalized", 301, bytes_in=7) and found.broken is None
    assert [one.sequence for one in found.latest] == [first]


def test_calls_are_counted_by_kind_and_the_latest_are_held_in_order(ledger: Ledger) -> None:
    record = LedgerReader(ledger, DECLARATION)
    assert record.update() == Summary(0, 0, None, (), ())
    asked(ledger, "join", bytes=600)
    asked(ledger, "current")
    first = sent(ledger, 1)
    second = sent(ledger, 2, status=409)
    summary = record.update()
    assert (summary.written, summary.read, summary.broken) == (8, 8, None)
    assert totals(summary) == {
        "join": CallTally("join", 1, bytes_out=600, bytes_in=7),
        "current": CallTally("current", 1, bytes_in=7),
        "update": CallTally("update", 2, refused=1, bytes_out=60, bytes_in=14),
    }
    assert [one.sequence for one in summary.latest] == [1, first, second]  # polls are counted, not held


def test_a_call_without_an_outcome_counts_as_sent_until_its_outcome_comes(ledger: Ledger) -> None:
    record = LedgerReader(ledger, DECLARATION)
    lost = sent(ledger, 1, status=None)
    asked(ledger, "current")
    found = record.update()
    assert totals(found)["update"] == CallTally("update", 1, unanswered=1, bytes_out=30)
    assert [(one.sequence, one.status) for one in found.latest] == [(lost, None)]
    ledger.append("outcome", of=lost, status=201, bytes=5, sha256="cd")
    found = record.update()
    assert totals(found)["update"] == CallTally("update", 1, bytes_out=30, bytes_in=5)
    assert [(one.sequence, one.status) for one in found.latest] == [(lost, 201)]
    ledger.append("outcome", of=asked(ledger, "join", status=None), error="ConnectError")
    assert totals(record.update())["join"] == CallTally("join", 1, unanswered=1)


def test_calls_that_never_had_an_outcome_are_bounded_and_none_is_forgotten(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MOST_OPEN", 2)
    record = LedgerReader(ledger, DECLARATION)
    for number in range(1, 6):
        sent(ledger, number, status=None)
        assert totals(record.update())["update"] == CallTally(
            "update", number, unanswered=number, bytes_out=30 * number
        )
    assert [one.round for one in record.update().latest] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "fields",
    [
        {"tensors": []},
        {"tensors": [TENSOR, TENSOR | {"name": "items"}]},
        {"tensors": [TENSOR, TENSOR]},
        {"tensors": [TENSOR | {"shape": [3, 2]}]},
        {"tensors": [TENSOR | {"dtype": "F64"}]},
        {"scalars": {"rho": 0.5, "recall": 0.9}},
    ],
)
def test_an_update_of_other_fields_than_declared_is_counted_as_such(ledger: Ledger, fields: dict[str, Any]) -> None:
    sent(ledger, 1)
    sent(ledger, 2, scalars={})  # fewer scalars are no more than declared
    sent(ledger, 3, **fields)
    asked(ledger, "anchor", scalars={"rho": 0.5})
    found = totals(LedgerReader(ledger, DECLARATION).update())
    assert (found["update"].other, found["anchor"].other) == (1, 1)


@pytest.mark.usefixtures("bit_by_bit")
def test_a_long_ledger_is_read_in_steps_and_says_how_far_it_is(ledger: Ledger) -> None:
    for _ in range(5):
        asked(ledger, "current")
    record = LedgerReader(ledger, DECLARATION)
    assert [record.update().read for _ in range(4)] == [4, 8, 10, 10]
    assert totals(record.update())["current"] == CallTally("current", 5, bytes_in=35)


def altered(lines: list[str]) -> list[str]:
    return [*lines[:4], lines[4].replace('"bytes":0', '"bytes":9'), *lines[5:]]


def lengthened(lines: list[str]) -> list[str]:
    return [*lines[:4], lines[4].replace('"bytes":0', '"bytes":999'), *lines[5:]]


def removed(lines: list[str]) -> list[str]:
    return [*lines[:4], *lines[5:]]


def scribbled(lines: list[str]) -> list[str]:
    return [*lines[:4], "<script>no JSON</script>\n", *lines[5:]]


def cut_off(lines: list[str]) -> list[str]:
    return lines[:4]


@pytest.mark.parametrize("change", [altered, lengthened, removed, scribbled, cut_off])
@pytest.mark.parametrize("seen", [True, False], ids=["read before", "never read"])
@pytest.mark.usefixtures("bit_by_bit")
def test_a_line_that_somebody_changes_is_found_whether_or_not_it_was_read_before_and_when_it_is_mended(
    ledger: Ledger, tmp_path: Path, change: Callable[[list[str]], list[str]], seen: bool
) -> None:
    for _ in range(5):
        asked(ledger, "current")
    record, path = LedgerReader(ledger, DECLARATION), tmp_path / "ledger.jsonl"
    if seen:
        assert settled(record).broken is None
    before = path.read_text()
    path.write_text("".join(change(before.splitlines(keepends=True))))
    looks = [record.update() for _ in range(12)]
    lines = [look.broken for look in looks]
    assert set(lines[: lines.index(5)]) <= {None} and set(lines[lines.index(5) :]) == {5}
    assert totals(looks[-1])["current"] == CallTally("current", 2, bytes_in=14)  # figures end before it
    path.write_text(before)
    assert settled(record).broken is None and totals(settled(record))["current"].count == 5


def test_the_newest_entries_and_any_others_are_found_with_their_lines(ledger: Ledger) -> None:
    count = 2 * STRIDE + 10
    for number in range(1, count + 1):
        ledger.append("intent", call="current", bytes=number)
    record = LedgerReader(ledger, DECLARATION)
    for last in (count, STRIDE + 1, STRIDE, 5, 0):
        found = record.entries(last, 7)
        assert [line for line, _ in found] == list(range(last, max(0, last - 7), -1))
        assert all(entry["bytes"] == entry["sequence"] == line for line, entry in found)


def test_entries_are_found_from_any_place_after_a_restart_and_after_a_line_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    for _ in range(STRIDE + 5):
        first.append("intent", call="current")
    again = Ledger(path)
    assert len(again) == STRIDE + 5
    assert [entry["sequence"] for entry in again.entries(STRIDE + 1, 2)] == [STRIDE + 2, STRIDE + 3]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:10], *lines[11:]]))
    assert [entry["sequence"] for entry in again.entries(STRIDE + 1, 2)] == [STRIDE + 3, STRIDE + 4]


def test_a_damaged_entry_is_shown_as_far_as_it_can_be() -> None:
    entries: list[tuple[int, dict[str, Any]]] = [
        (4, {"damaged": "x" * 10_000}),
        (3, {"kind": ["list"], "time": None, "bytes": "many", "status": {"a": 1}, "sha256": 5}),
        (2, {"kind": "outcome", "of": 1, "error": "ConnectError"}),
        (1, {"kind": "intent", "call": "update", "run": "run-1", "round": "2", "bytes": 9, "sha256": "ab"}),
    ]
    found = list_entries(entries, 4, Summary(9, 4, 3, (), ()))
    assert [row.about for row in found.rows] == ["x" * 120, "", "answer to 1", "update · run-1 · round 2"]
    assert [row.kind for row in found.rows] == ["damaged", "['list']", "outcome", "intent"]
    assert [row.bytes for row in found.rows] == [None, None, None, 9]
    assert [bool(row.mark.word) for row in found.rows] == [False, True, False, False]
    assert (found.older, found.newer) == (None, "./?before=25#ledger")
