"""Heart-beats go on whatever the disk says of one client's key; changes come no faster than clients read."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from aggregator_service.rounds import broadcaster
from aggregator_service.rounds.broadcaster import StateBroadcaster
from aggregator_service.rounds.metrics import AggregatorMetrics
from shared.protocol.schemas import RunOut
from shared.protocol.signing.events import EVENT_SECONDS
from shared.protocol.signing.keys import PublicKey, new_key

pytestmark = pytest.mark.anyio
KEY, CLIENTS_KEY = new_key(), new_key().public_key()


class Held:
    """What a stream writes to."""

    def __init__(self) -> None:
        self.written, self.ended, self.on_lost = b"", False, None

    def write(self, chunk: bytes) -> None:
        self.written += chunk

    def end(self) -> None:
        self.ended = True


async def test_a_key_that_the_disk_does_not_give_ends_its_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcaster, "TURN_SECONDS", 0.001)
    unreadable = False

    def registered_key(client: str) -> PublicKey:
        if unreadable and client == "north":
            raise PermissionError("of the folder of keys")
        return CLIENTS_KEY

    one = StateBroadcaster(KEY, registered_key, AggregatorMetrics(time.time), lambda _: None)
    north, south = Held(), Held()
    for client, held in (("north", north), ("south", south)):
        connection: Any = held
        one.open_stream(client, connection, request="sig1=:a request:", after=None)
    unreadable = True
    following = asyncio.create_task(one.follow())
    for _ in range(1000):
        await asyncio.sleep(0.002)
        if north.ended and south.written.count(b'"kind":"beat"') > 1:
            break
    assert north.ended and not following.done()
    assert south.written.count(b'"kind":"beat"') > 1 and not south.ended
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_changes_in_quick_succession_are_told_together_and_the_last_one_always() -> None:
    """A client reads twenty events a second: told of each, it would follow states of long ago."""
    one = StateBroadcaster(KEY, lambda _: CLIENTS_KEY, AggregatorMetrics(time.time), lambda _: None)
    held: Any = Held()
    one.publish(0, RunOut(sequence=0))
    one.open_stream("north", held, request="sig1=:a request:", after=0)
    following = asyncio.create_task(one.follow())
    for sequence in range(1, 101):
        one.publish(sequence, RunOut(sequence=sequence))
        await asyncio.sleep(0)
    await asyncio.sleep(4 * EVENT_SECONDS)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert 1 <= held.written.count(b'"kind":"change"') <= 5 and b'"state":{"sequence":100' in held.written


async def test_events_name_the_time_over_which_all_clients_are_to_come_back() -> None:
    one = StateBroadcaster(KEY, lambda _: CLIENTS_KEY, AggregatorMetrics(time.time), lambda _: None)
    connections: list[Any] = [Held() for _ in range(100)]
    for number, held in enumerate(connections):
        one.open_stream(f"client-{number}", held, request="sig1=:a request:", after=None)
    one.publish(1, RunOut(sequence=1))
    await asyncio.wait({following := asyncio.create_task(one.follow())}, timeout=0.1)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    written = connections[0].written
    assert b'"spread_seconds":0.002}' in written[: written.index(b"\n\n")], "there was no other when it was opened"
    assert b'"spread_seconds":0.2' in written
