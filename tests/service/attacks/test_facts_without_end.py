"""What applications tell stays in memory for as long as it holds, and no caller can make it as much as it likes.

Who: whoever has the application's key. Before, 36 MB of facts were 46 MB of memory for good, and there
was no end to it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard
from client_service.event_log import store as stores
from client_service.event_log.item_metadata import MOST_MASKS, ItemMetadata
from client_service.event_log.messages import InteractionIn, ItemIn
from client_service.event_log.overlay import HIDDEN, Overlay
from client_service.event_log.store import BYTES_BESIDE, LONGEST_FACTS, EventStore
from shared.errors import ConflictError, FederationError, TooLargeError
from tests.support.given import Opened, Silos
from tests.support.small import small_client

MOST_BYTES = 20_000
TEXT = "x" * 1000


@pytest.fixture
def log(tmp_path: Path) -> EventStore:
    return EventStore(tmp_path, most=1000, most_item_bytes=MOST_BYTES)


def fill(log: EventStore, letter: str = "x") -> int:
    """How many items with a thousand bytes of title there is room for."""
    for number in range(1000):
        try:
            log.put_item(f"item-{number:03d}", ItemIn(title=letter * 1000))
        except ConflictError as error:
            assert "most_item_bytes" in str(error)
            return number
    raise AssertionError


def kept_bytes(log: EventStore) -> int:
    return sum(
        len(item.encode()) + len(facts.model_dump_json().encode()) for item, facts in log.read_items(-1)[1].items()
    )


@pytest.mark.parametrize(
    "facts",
    [
        ItemIn(categories=tuple(f"{number:03d}" + "c" * 190 for number in range(100))),
        ItemIn(attributes={f"key {number}": "v" * 2000 for number in range(10)}),
        ItemIn(title="\U0001f3ac" * 2000, categories=tuple(f"{number:03d}" + "é" * 100 for number in range(50))),
    ],
)
def test_one_item_has_so_many_bytes_and_no_more(log: EventStore, facts: ItemIn) -> None:
    with pytest.raises(TooLargeError, match=f"at most {LONGEST_FACTS} bytes"):
        log.put_item("boots", facts)
    assert log.read_items(-1)[1] == {}
    log.close()


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f3ac"])
def test_all_items_together_have_so_many_bytes(log: EventStore, letter: str) -> None:
    count = fill(log, letter)
    size = len(letter.encode()) * 1000
    assert MOST_BYTES - 2 * (size + 600) < kept_bytes(log) + count * BYTES_BESIDE <= MOST_BYTES
    log.close()


def test_what_is_said_anew_takes_the_place_of_what_was_said_before(log: EventStore) -> None:
    count = fill(log)
    for _ in range(50):
        log.put_item("item-000", ItemIn(title="y" * 1000))
    with pytest.raises(ConflictError):
        log.put_item("item-000", ItemIn(title="y" * 2000))
    log.put_item("item-000", ItemIn(hidden=True))
    log.put_item("another", ItemIn(title="z" * 700))
    assert len(log.read_items(-1)[1]) == count + 1
    log.close()


def test_a_log_that_is_opened_again_counts_what_it_has_and_more_than_it_may_is_still_read(
    log: EventStore, tmp_path: Path
) -> None:
    count = fill(log)
    log.close()
    again = EventStore(tmp_path, most=1000, most_item_bytes=MOST_BYTES)
    with pytest.raises(ConflictError):
        again.put_item("one-more", ItemIn(title=TEXT))
    again.close()
    smaller = EventStore(tmp_path, most=1000, most_item_bytes=1000)
    assert len(smaller.read_items(-1)[1]) == count
    smaller.put_item("item-000", ItemIn(hidden=True))  # less than before
    with pytest.raises(ConflictError):
        smaller.put_item("item-001", ItemIn(title="x" * 1001))
    smaller.close()


def test_what_failed_to_be_written_does_not_count(log: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    log.put_item("first", ItemIn(title=TEXT))
    put = EventStore._put_item

    def put_and_fail(self: EventStore, rows: object, item: str, facts: ItemIn) -> int | FederationError:
        put(self, rows, item, facts)  # type: ignore[arg-type]
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(EventStore, "_put_item", put_and_fail)
        for _ in range(50):
            with pytest.raises(RuntimeError):
                log.put_item("second", ItemIn(title=TEXT))
    assert fill(log) > 10
    log.close()


def test_ids_of_interactions_are_bounded_in_bytes_and_room_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "LEAST_ID_BYTES", 4096)
    log = EventStore(tmp_path, most=10)

    def interact(number: int, length: int) -> None:
        user = f"{number:04d}" + "é" * length
        log.append([InteractionIn(event=f"{user[:4]}-{length}", user=user, item="boots")])

    for number in range(4):
        interact(number, 500)
    with pytest.raises(ConflictError, match="ids of at most 4096 bytes"):
        interact(4, 500)
    interact(4, 4)
    assert log.append([InteractionIn(event="0004-4", user="0004éééé", item="boots")]) == []
    log.erasures.erase_user("0000" + "é" * 500, known=False)
    interact(5, 450)
    log.close()


def test_hidden_items_share_what_is_said_of_them(silos: Silos) -> None:
    overlay = Overlay(compile_in_memory(load_shard(silos(1)[0])))
    overlay.update_items(1, {f"item-{number:02d}": ItemIn(hidden=True) for number in range(5)})
    assert all(facts is HIDDEN for facts in overlay._items.values()) and len(overlay._items) == 5


def test_words_of_filters_are_kept_for_so_many_of_them(silos: Silos) -> None:
    facts = ItemMetadata(compile_in_memory(load_shard(silos(1)[0])), {})
    for number in range(MOST_MASKS + 500):
        facts.mask([("category", (f"{number}" + "x" * 100,))])
    assert facts.mask_value.cache_info().currsize == MOST_MASKS


@pytest.mark.anyio
async def test_callers_are_told_by_status_and_code(silos: Silos, tmp_path: Path, opened: Opened) -> None:
    async with opened(small_client(silos(1)[0], tmp_path, most_item_bytes=3000)) as http:
        long = await http.put("/v1/items/a", json={"attributes": {f"key {n}": "v" * 2000 for n in range(10)}})
        assert (long.status_code, long.json()["code"]) == (413, "too-large")
        answers = [await http.put(f"/v1/items/{n}", json={"title": TEXT}) for n in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 409] and answers[2].json()["code"] == "conflict"
        assert (await http.get("/v1/items/2")).status_code == 404
        assert (await http.delete("/v1/items/1")).status_code == 200
        assert (await http.put("/v1/items/2", json={"title": "short"})).status_code == 200
