"""Heart-beats go on whatever the disk says of one client's key."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from aggregator_service.rounds import broadcaster
from aggregator_service.rounds.broadcaster import StateBroadcaster
from aggregator_service.rounds.metrics import AggregatorMetrics
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
