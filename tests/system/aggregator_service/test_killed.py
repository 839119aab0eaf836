"""A real aggregator that is killed in the middle of a stream of uploads: what it had accepted it has, and no more."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import numpy as np
import pytest

from shared.method.parameters import Float32
from shared.method.settings import AnchorSettings, MethodSettings
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import FakeClient, Served

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
NAMES = [f"client-{number:02d}" for number in range(12)]
VALUES = {name: float(number) for number, name in enumerate(NAMES)}
PIECE = 1 << 20  # of a body so slow that the kill falls into it; the service writes so much at once
GRAPH = AnchorSettings(users=40, items=30, edges=200)
WIDE = MethodSettings(width=256, layers=1, cutoff=12, margin_strength=1.0, anchor=GRAPH)
"""Of which an update may have three pieces."""


def body_of(client: FakeClient) -> bytes:
    return client.update(VALUES[client.name], rho=0.1, margin=0.5)


class Stream:
    """Uploads of many clients at once, the answers that came, and the kill once there are so many."""

    def __init__(self, service: Served, kill_after: int) -> None:
        self.accepted: dict[str, dict[str, Any]] = {}
        self._service, self._kill_after, self._killed = service, kill_after, anyio.Event()

    async def send(self, client: FakeClient) -> None:
        try:
            answer = await client.put(1, body_of(client))
        except httpx.TransportError:
            return  # nobody knows whether it was accepted
        assert answer.status_code == 201, answer.text
        self.accepted[client.name] = answer.json()
        if len(self.accepted) == self._kill_after:
            self._service.kill()
            self._killed.set()

    async def linger(self, client: FakeClient) -> None:
        with pytest.raises(httpx.TransportError):
            await client.put(1, self._unfinished(), Content_Length=str(3 * PIECE))

    async def _unfinished(self) -> AsyncIterator[bytes]:
        yield b"0" * (2 * PIECE)
        await self._killed.wait()
        yield b"0" * PIECE

    async def run(self, clients: list[FakeClient]) -> None:
        """The last two clients only ever send half of what they have."""
        async with anyio.create_task_group() as tasks:
            for client in clients[-2:]:
                tasks.start_soon(self.linger, client)
            await self._half_written(2)
            for client in clients[:-2]:
                tasks.start_soon(self.send, client)

    async def _half_written(self, count: int) -> None:
        with anyio.fail_after(LONGEST_SECONDS):
            while sum(path.stat().st_size >= PIECE for path in parts(self._service.state)) < count:
                await anyio.sleep(0.01)


def parts(state: Path) -> list[Path]:
    return list((state / "blobs").glob("*.part"))


def rows(state: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{state / 'aggregator.sqlite'}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def require_whole(state: Path) -> set[str]:
    """Whose updates are held. Each is there with the content that was accepted, and no other file is."""
    held = rows(state, "select client, digest, blob from updates")
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (state / "blobs").iterdir()}
    assert files == {blob: digest for _, digest, blob in held}
    return {client for client, _, _ in held}


@pytest.mark.parametrize("kill_after", [1, 7])
async def test_nothing_accepted_is_lost_and_nothing_half_accepted_is_there(
    served: Callable[..., Served], tensors: Callable[[bytes], dict[str, Float32]], kill_after: int
) -> None:
    service = served(WIDE)
    async with service.started() as federation:
        stream = Stream(service, kill_after)
        await stream.run(await federation.begun(*NAMES))
    assert len(stream.accepted) >= kill_after and len(parts(service.state)) >= 2
    assert (service.state / "aggregator.sqlite-wal").stat().st_size > 0  # what is committed lies there
    async with service.started() as federation:
        held = require_whole(service.state)
        assert stream.accepted.keys() <= held < set(NAMES)
        clients = [federation.client(name) for name in NAMES]
        state = (await clients[0].get("/v1/runs/current")).json()
        assert (state["run"], state["phase"], state["round"], state["received"]) == ("run-1", "open", 1, len(held))
        for client in clients:  # each sends once more: what is held is answered with the receipt of before
            answer = await client.put(1, body_of(client))
            assert answer.status_code == (200 if client.name in held else 201)
            assert stream.accepted.get(client.name, answer.json()) == answer.json()
        mean = tensors((await clients[0].personalised(1, wait=20)).content)
        assert all(np.allclose(array, np.mean([*VALUES.values()])) for array in mean.values())


async def test_a_round_is_closed_once_however_often_the_service_is_killed(served: Callable[[], Served]) -> None:
    """A kill after every upload; each time all that was sent before comes again, the last first."""
    service, names = served(), NAMES[:2]
    for count in range(1, len(names) + 1):
        async with service.started() as federation:
            if count == 1:
                await federation.begun(*names)
            for name in reversed(names[:count]):
                client = federation.client(name)
                assert (await client.put(1, body_of(client))).status_code == (201 if name == names[count - 1] else 200)
    async with service.started() as federation:
        clients = [federation.client(name) for name in names]
        for client in clients:
            assert await client.level(1, wait=20) == 0.5  # of 0 and 1
        state = (await clients[0].get("/v1/runs/current")).json()
        assert (state["round"], state["phase"], state["received"]) == (2, "open", 0)
        assert [(await client.put(1, body_of(client))).status_code for client in clients] == [200] * len(names)
        assert rows(service.state, "select run, round from states") == [("run-1", 1)]
