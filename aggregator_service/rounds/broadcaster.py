"""Broadcast of the federation's changes to the clients that hold a stream.

A change is written once and signed once for all clients. Only the newest counts: a client that resumes its stream gets
the present state, however many it has missed, and changes that follow each other faster than clients read are told
together. Heart-beats are made once a second, for the streams whose turn it is.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count

from aggregator_service.process import Clock
from aggregator_service.rounds.metrics import AggregatorMetrics
from shared.protocol.schemas import RunOut
from shared.protocol.signing.events import EVENT_SECONDS, FederationEvent, write_event
from shared.protocol.signing.keys import PrivateKey, PublicKey, raw_hex
from shared.timeouts import BEAT_SECONDS, STREAM_SECONDS
from shared.web.held_streams import HeldConnection, encode_chunk

TURN_SECONDS = 1.0  # time between two turns of the heart-beats
TURNS = round(BEAT_SECONDS / TURN_SECONDS)
MOST_AT_A_TIME = 256  # streams that are written to before other work has its turn
MOST_OF_CLIENT = 2  # streams of one client: a resumed one may come before the end of the lost one is known
OTHER_WORK = 3.0  # times as long as a change was written, other work has its turn before the next one is
RETURN_SECONDS = 0.002  # processor time of a client that comes back: its poll, and its stream
LONGEST_SPREAD = 60.0
JITTER = 0.2  # part of a stream's longest time by which it may end earlier


class FederationStream:
    """Held stream of one client.

    key: the client's at the stream's opening. told: sequence of the last change that was written.
    """

    __slots__ = ("client", "connection", "ends", "key", "told", "turn")

    def __init__(
        self, client: str, key: PublicKey, connection: HeldConnection, *, told: int, turn: int, ends: float
    ) -> None:
        self.client, self.key, self.connection = client, key, connection
        self.told, self.turn, self.ends = told, turn, ends


class StateBroadcaster:
    """Broadcaster of the federation's state to held streams.

    registered_key: returns a client's present key; a stream of another key ends. record_answer: called with the
    client's name when it has been told a change.
    """

    def __init__(
        self,
        key: PrivateKey,
        registered_key: Callable[[str], PublicKey | None],
        metrics: AggregatorMetrics,
        record_answer: Callable[[str], None],
        *,
        clock: Clock = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._key, self._registered_key, self._metrics, self._record_answer = (
            key,
            registered_key,
            metrics,
            record_answer,
        )
        self._clock, self._draw = clock, draw
        self._own, self._name = raw_hex(key.public_key()), secrets.token_hex(16)
        self._turns: tuple[dict[FederationStream, None], ...] = tuple({} for _ in range(TURNS))
        self._of: defaultdict[str, list[FederationStream]] = defaultdict(list)
        self._opened = 0
        self.sequence, self._change, self._beat = 0, b"", b""
        self._published = asyncio.Event()
        self.closing = False
        metrics.watch_streams(lambda: len(self))

    def __len__(self) -> int:
        return sum(map(len, self._turns))

    def __contains__(self, client: object) -> bool:
        return client in self._of

    def publish(self, sequence: int, state: RunOut | None) -> None:
        """Publishes a change; it is sent to all streams soon after.

        state: for all clients; None if it differs: each then asks for its own. A sequence that is published
        already changes nothing. One that goes back is that of another past, such as a restored database: all streams
        end, and clients ask anew.
        """
        if sequence == self.sequence and self._change:
            return
        if sequence < self.sequence:
            self._end_all("went_back")
            self._name = secrets.token_hex(16)
        self.sequence = sequence
        self._change, self._beat = self._write("change", state=state), self._write("beat")
        self._published.set()

    def open_stream(self, client: str, connection: HeldConnection, *, request: str, after: int | None) -> None:
        """Opens a stream on a connection, of which the answer's head is sent.

        request: the signature of the client's request. after: the change that the client knows.
        """
        key = self._find_key(client)
        if key is None or self.closing:
            connection.end()
            return
        for older in self._of.get(client, [])[: 1 - MOST_OF_CLIENT]:
            self._end(older, "replaced")
        turn, self._opened = self._opened % TURNS, self._opened + 1
        ends = self._clock() + STREAM_SECONDS * self._draw(1.0 - JITTER, 1.0)
        told = self.sequence if after == self.sequence else -1
        stream = FederationStream(client, key, connection, told=told, turn=turn, ends=ends)
        self._turns[turn][stream] = None
        self._of[client].append(stream)
        connection.on_lost = lambda: self._forget(stream, "lost")
        connection.write(self._write("opened", aggregator=self._own, request=request, beat_seconds=BEAT_SECONDS))
        self._tell_change(stream)

    async def follow(self) -> None:
        """Sends changes and heart-beats until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            jobs.create_task(self._send_changes())
            jobs.create_task(self._send_beats())

    def close(self) -> None:
        """Ends all streams, and each that opens from now on, for the shutdown."""
        self.closing = True
        self._end_all("stopping")

    async def _send_changes(self) -> None:
        while True:
            await self._published.wait()
            self._published.clear()
            began = self._clock()
            await self._for_each(list(self._streams()), self._tell_change)
            await asyncio.sleep(max(EVENT_SECONDS, OTHER_WORK * (self._clock() - began)))

    async def _send_beats(self) -> None:
        """Sends the heart-beats of one turn after the other.

        A stream whose time is over, or whose key is no longer registered, ends instead.
        """
        for number in count():
            self._beat = self._write("beat")
            await self._for_each(list(self._turns[number % TURNS]), self._send_beat)
            await asyncio.sleep(TURN_SECONDS)

    def _send_beat(self, stream: FederationStream) -> None:
        if self._find_key(stream.client) is not stream.key:
            self._end(stream, "revoked")
        elif self._clock() > stream.ends:
            self._end(stream, "time")
        else:
            self._tell_change(stream)
            stream.connection.write(self._beat)

    def _find_key(self, client: str) -> PublicKey | None:
        """Returns the client's present key; None if the disk refuses to tell it.

        Other clients' heart-beats must go on.
        """
        try:
            return self._registered_key(client)
        except OSError:
            return None

    async def _for_each(self, streams: list[FederationStream], act: Callable[[FederationStream], None]) -> None:
        """Calls a function with each stream that is still open.

        Other work has its turn in between.
        """
        for number, stream in enumerate(streams, 1):
            if stream in self._turns[stream.turn]:
                act(stream)
            if number % MOST_AT_A_TIME == 0:
                await asyncio.sleep(0)

    def _end_all(self, reason: str) -> None:
        for stream in list(self._streams()):
            self._end(stream, reason)

    def _end(self, stream: FederationStream, reason: str) -> None:
        self._forget(stream, reason)
        stream.connection.on_lost = None
        stream.connection.end()

    def _forget(self, stream: FederationStream, reason: str) -> None:
        if self._turns[stream.turn].pop(stream, self) is self:
            return
        self._of[stream.client].remove(stream)
        if not self._of[stream.client]:
            del self._of[stream.client]
        self._metrics.streams_ended.labels(reason).inc()

    def _streams(self) -> Iterator[FederationStream]:
        return (stream for turn in self._turns for stream in turn)

    def _tell_change(self, stream: FederationStream) -> None:
        if stream.told != self.sequence and self._change:
            stream.told = self.sequence
            stream.connection.write(self._change)
            self._record_answer(stream.client)

    def _write(self, kind: str, **more: object) -> bytes:
        spread = min(LONGEST_SPREAD, RETURN_SECONDS * len(self)) or None
        known = {"stream": self._name, "sequence": self.sequence, "clock": self._clock(), "spread_seconds": spread}
        event = FederationEvent.model_validate({"kind": kind, **known, **more})
        return encode_chunk(write_event(event, self._key))
