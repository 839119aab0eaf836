"""Several processes write one log of events: each knows at once what the others have written, and waits for nobody."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interactions import Shard, build_shard
from client_service.event_log import database
from client_service.event_log.database import NAME
from client_service.event_log.messages import InteractionIn, ItemIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.store import EventStore
from client_service.serving.ranking import ListRequest
from client_service.serving.recommender import Recommender
from shared.errors import UnavailableError
from tests.support.questions import LONGEST_SECONDS

CANARY = "canary-4711-user"
EVENTS = {"user": ["anna", "anna", "bert"], "item": ["boots", "hat", "hat"], "split": ["train"] * 3}


def told(user: str, item: str, event: str = "e") -> InteractionIn:
    return InteractionIn(event=f"{event}-{user}-{item}", user=user, item=item, time=None, rating=None)


@pytest.fixture
def shard() -> Shard:
    return build_shard("shop", pl.DataFrame(EVENTS), None)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[EventStore, EventStore]]:
    one, other = EventStore(tmp_path), EventStore(tmp_path)
    yield one, other
    one.close()
    other.close()


def test_what_another_process_writes_is_in_the_next_answer(stores: tuple[EventStore, EventStore], shard: Shard) -> None:
    own, other = stores
    compiled = compile_in_memory(shard)
    recommender = Recommender(compiled, overlay=Overlay(compiled, own))
    assert len(recommender.history("zoe", 9)[0]) == 0
    other.append([told("zoe", "hat")])
    assert [one.item for one in recommender.history("zoe", 9)[0]] == ["hat"]
    other.put_item("boots", ItemIn(hidden=True, title="Winter boots"))
    assert [one.item for one in recommender.for_user("zoe", ListRequest(5)).items] == []
    assert recommender.history("anna", 9)[1] == 2
    other.erasures.erase_user("anna", known=True)
    assert recommender.history("anna", 9)[1] == 0
    assert recommender.for_user("anna", ListRequest(5)).user == "anna" and recommender.known_users == 1


def test_nothing_is_read_while_nobody_writes(
    stores: tuple[EventStore, EventStore], shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = stores
    overlay = Overlay(compile_in_memory(shard), own)
    other.append([told("zoe", "hat")])
    overlay.follow()
    assert overlay.latest_events("zoe") is not None
    with monkeypatch.context() as patch:
        patch.setattr(own, "count_changes", lambda: pytest.fail("nothing has changed"))
        for _ in range(3):
            overlay.follow()
    own.append([told("zoe", "boots")])  # by another thread of the same process, which has not said so yet
    overlay.follow()
    assert [len(found.positive) for found in [overlay.latest_events("zoe")] if found is not None] == [2]


def test_an_answer_does_not_wait_for_who_writes(stores: tuple[EventStore, EventStore], shard: Shard) -> None:
    own, other = stores
    overlay = Overlay(compile_in_memory(shard), own)
    for writer in stores:
        other.append([told("zoe", "hat", repr(writer))])
        with writer._database.transaction() as rows:
            rows.execute("UPDATE place SET looked = looked")
            overlay.follow()  # it would wait for ever, or until the other gives up
            assert overlay.latest_events("zoe") is not None


def test_what_is_erased_is_in_no_file_while_others_have_the_log_open(
    stores: tuple[EventStore, EventStore], tmp_path: Path
) -> None:
    own, other = stores
    own.append([told(CANARY, "hat"), told("zoe", "hat")])
    other.append([told(CANARY, "boots")])
    assert other.interactions() and _files_with_canary(tmp_path)
    other.erasures.erase_user(CANARY, known=False)
    own.compact()
    assert _files_with_canary(tmp_path) == []
    assert [one.user for one in other.interactions()] == ["zoe"]


def test_a_log_that_another_process_reads_is_compacted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    store = EventStore(tmp_path)
    store.append([told(CANARY, "hat"), told("zoe", "hat")])
    with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM interactions").fetchone() == (2,)
        store.erasures.erase_user(CANARY, known=False)
        with pytest.raises(UnavailableError):
            store.compact()
        assert store.interactions()[0].user == "zoe" and _files_with_canary(tmp_path)
    store.compact()
    assert _files_with_canary(tmp_path) == []
    store.close()


def _files_with_canary(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_a_log_that_is_closed_while_somebody_looks_at_it_refuses_and_does_no_harm(tmp_path: Path) -> None:
    """The process ended by a fault of memory."""

    def look(store: EventStore, begun: threading.Event, refused: list[Exception]) -> None:
        try:
            while True:
                store.change_number()
                begun.set()
        except UnavailableError as error:
            refused.append(error)

    for number in range(30):
        store, begun, refused = EventStore(tmp_path / str(number), most=10), threading.Event(), list[Exception]()
        looking = threading.Thread(target=look, args=(store, begun, refused))
        looking.start()
        assert begun.wait(LONGEST_SECONDS)
        store.close()
        looking.join()
        assert len(refused) == 1
