"""Attack: erasures asked for again and again: before, each left a receipt in the silo's file for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_service.event_log import log_store
from client_service.event_log.store import EventStore


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EventStore:
    monkeypatch.setattr(log_store, "MOST_RECEIPTS", 5)
    return EventStore(tmp_path)


def erase(log: EventStore, count: int, *, known: bool = False) -> list[str]:
    name = "known" if known else "other"
    return [log.erasures.erase_user(f"{name}-{number}", known=known)[1].receipt for number in range(count)]


def test_of_very_many_that_are_done_the_newest_are_known(log: EventStore) -> None:
    receipts = erase(log, 12)
    assert log.erasures.complete_unknown() == 12
    found = [log.erasures.read_receipt(one) for one in receipts]
    assert found[:7] == [None] * 7 and all(one is not None and one.done for one in found[7:])


def test_one_that_is_not_done_is_known_however_many_there_are(log: EventStore) -> None:
    waiting, done = erase(log, 8, known=True), erase(log, 8)
    log.erasures.complete_unknown()
    assert all((one := log.erasures.read_receipt(receipt)) and one.done is None for receipt in waiting)
    assert sum(log.erasures.read_receipt(receipt) is not None for receipt in done) == 5


def test_a_user_who_is_erased_while_he_is_being_erased_has_one_receipt(log: EventStore) -> None:
    assert {*erase(log, 1, known=True), *erase(log, 1, known=True)} == {*erase(log, 1, known=True)}


def test_one_that_was_done_a_year_ago_is_known_and_much_later_it_is_not(
    log: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_800_000_000.0]
    monkeypatch.setattr("client_service.event_log.store.time.time", lambda: clock[0])
    (receipt,) = erase(log, 1)
    log.erasures.complete_unknown()
    clock[0] += 366 * 86_400
    log.erasures.complete_unknown()
    assert log.erasures.read_receipt(receipt) is not None
    clock[0] += 40 * 86_400
    log.erasures.complete_unknown()
    assert log.erasures.read_receipt(receipt) is None
