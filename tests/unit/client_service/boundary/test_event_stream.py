"""Of a held answer a client believes only what the aggregator has signed, for this stream, later and now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from client_service.boundary import event_stream
from client_service.boundary.event_stream import MOST_BYTES, PIECE_BYTES, EventStream
from shared.errors import UnavailableError
from shared.protocol.schemas import RunOut
from shared.protocol.signing.events import EVENT_SECONDS, LONGEST_EVENT, FederationEvent, read_event, write_event
from shared.protocol.signing.keys import new_key, raw_hex

pytestmark = pytest.mark.anyio
KEY, OTHER = new_key(), new_key()
STREAM, REQUEST = "ab" * 16, "sig1=:this request:"


def event(kind: str, sequence: int, clock: float = 100.0, **more: Any) -> bytes:
    """An event as the aggregator writes it; `key`, `stream`: others than its own."""
    key, stream = more.pop("key", KEY), more.pop("stream", STREAM)
    fields = {"kind": kind, "stream": stream, "sequence": sequence, "clock": clock, **more}
    return write_event(FederationEvent.model_validate(fields), key)


def opening(sequence: int = 5, **more: Any) -> bytes:
    said = {"aggregator": raw_hex(KEY.public_key()), "request": REQUEST, "beat_seconds": 20.0}
    return event("opened", sequence, **(said | more))


def change(sequence: int, **more: Any) -> bytes:
    return event("change", sequence, state=RunOut(sequence=sequence), **more)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def opened(*pieces: bytes, after: int = 5, clock: Clock | None = None) -> EventStream:
    """A stream whose answer is these pieces."""

    async def content() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    answer = httpx.Response(200, content=content())
    trusted = {raw_hex(KEY.public_key()): KEY.public_key()}

    def trusted_key(name: str) -> Any:
        if name not in trusted:
            raise UnavailableError("expected the pinned key, got another")
        return trusted[name]

    stream = EventStream(answer, REQUEST, trusted_key, lambda *_: None, after=after, clock=clock or Clock())
    await stream.open()
    return stream


async def test_changes_come_one_after_the_other_and_the_end_is_told() -> None:
    stream = await opened(opening(), event("beat", 5, 101.0), change(6) + change(9)[:40], change(9)[40:])
    found = [await stream.next_change() for _ in range(3)]
    assert [one and one.sequence for one in found] == [6, 9, None] and stream.beats == 1


async def test_a_heart_beat_tells_of_a_change_that_was_kept_back() -> None:
    stream = await opened(opening(), event("beat", 7, 101.0))
    found = await stream.next_change()
    assert found is not None and (found.sequence, found.state) == (7, None)


async def test_an_end_before_the_change_that_the_opening_announces_is_refused() -> None:
    stream = await opened(opening(6))
    with pytest.raises(UnavailableError, match="expected change 6, got the end of the answer"):
        await stream.next_change()
    stream = await opened(opening(6), change(6))
    assert await stream.next_change() is not None and await stream.next_change() is None


@pytest.mark.parametrize(
    "first",
    [
        opening(request="sig1=:another request:"),
        opening(key=OTHER),
        opening(aggregator=raw_hex(OTHER.public_key()), key=OTHER),
        change(6),
        b"id: 5\ndata: {}\n\n",
        b"<html>a proxy's page</html>\n\n",
        b"x" * (LONGEST_EVENT + 1),
        b"",
    ],
    ids=["another's", "forged", "another aggregator", "no opening", "no event", "a page", "endless", "nothing"],
)
async def test_a_stream_that_is_not_the_answer_to_this_request_is_not_opened(first: bytes) -> None:
    with pytest.raises(UnavailableError):
        await opened(first)


@pytest.mark.parametrize(
    ("piece", "told"),
    [
        (change(5), "later change"),
        (change(4), "later change"),
        (event("beat", 4, 101.0), "later change"),
        (opening(), "later change"),
        (change(6, stream="cd" * 16), "of this stream"),
        (change(6, key=OTHER), "another signature"),
        (change(6).replace(b'"joined":0', b'"joined":9'), "another signature"),
        (event("beat", 5, 100.0), "of this moment"),
        (change(6).replace(b"id: 6", b"id: 7"), "one sequence number"),
    ],
    ids=[
        "replayed",
        "back",
        "beat back",
        "opened twice",
        "other stream",
        "forged",
        "changed",
        "old beat",
        "two numbers",
    ],
)
async def test_an_event_that_is_replayed_forged_or_another_streams_is_refused(piece: bytes, told: str) -> None:
    stream = await opened(opening(), piece)
    with pytest.raises(UnavailableError, match=told):
        await stream.next_change()


async def test_heart_beats_that_are_held_back_are_refused() -> None:
    """A man in the middle may delay them, but not for longer than a heart-beat may be lost."""
    clock = Clock()
    stream = await opened(opening(), event("beat", 5, 120.0), event("beat", 5, 140.0), clock=clock)
    clock.now = 20.0 + 40.0 + 51.0
    with pytest.raises(UnavailableError, match="of this moment"):
        await stream.next_change()


@pytest.mark.parametrize("piece", [b"x", b"x" * 1000], ids=["bytes", "long pieces"])
async def test_a_line_without_end_is_given_up(piece: bytes) -> None:
    stream = await opened(opening(), *[piece] * 70_000)
    with pytest.raises(UnavailableError, match=r"got a longer one|bytes a second"):
        await stream.next_change()


async def test_a_stream_in_more_pieces_than_changes_need_is_ended() -> None:
    """Each piece costs the client as much as a large one, whatever is signed in it."""
    clock, read = Clock(), 0
    pieces = (
        written[at : at + 40]
        for number in range(6, 10_000)
        for written in (change(number),)
        for at in range(0, len(written), 40)
    )
    stream = await opened(opening(), *pieces, clock=clock)
    with pytest.raises(UnavailableError, match="bytes a second"):
        while await stream.next_change() is not None:
            read, clock.now = read + 1, clock.now + EVENT_SECONDS
    assert MOST_BYTES / (100 * PIECE_BYTES) < read < 1000


async def test_changes_as_fast_as_they_are_told_are_read_without_end() -> None:
    clock = Clock()
    stream = await opened(opening(), *(change(number) for number in range(6, 2006)), clock=clock)
    while await stream.next_change() is not None:
        clock.now += EVENT_SECONDS
    assert stream.sequence == 2005


async def test_heart_beats_without_a_pause_are_read_with_one() -> None:
    clock, began = Clock(), time.monotonic()
    beats = (event("beat", 5, 100.0 + number / 1000) for number in range(1, 8))
    stream = await opened(opening(), *beats, clock=clock)
    assert await stream.next_change() is None
    assert stream.beats == 7 and time.monotonic() - began > 7 * EVENT_SECONDS


async def test_a_first_event_that_does_not_come_at_once_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the client would not poll."""
    monkeypatch.setattr(event_stream, "BEAT_SECONDS", 0.01)

    async def content() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield opening()

    stream = EventStream(httpx.Response(200, content=content()), REQUEST, None, lambda *_: None)
    with pytest.raises(UnavailableError, match=r"within 0\.01 s"):
        await stream.open()


def test_an_event_is_read_in_its_one_form() -> None:
    written = change(6)
    assert read_event(written, KEY.public_key()).sequence == 6
    for other in (written[:-1], written + b"\n", b"event: x\n" + written, written.replace(b"\n", b"\r\n")):
        with pytest.raises(UnavailableError):
            read_event(other, KEY.public_key())
