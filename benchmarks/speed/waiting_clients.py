"""Load of one aggregator by many silos that wait: with polls, and with held streams.

python -m benchmarks.speed.load_model --waiting 1000 [--way streams] [--seconds 60] [--json]

Each client is a socket and a key: it sends the signed requests of a genuine client, and reads its answers without
looking at them. The clients have joined before; a run then starts, and all of them are told.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sqlalchemy import insert

from aggregator_service.settings import AggregatorSettings
from aggregator_service.storage.database import Database
from aggregator_service.storage.tables import CLIENTS
from benchmarks.common import render_table
from benchmarks.speed.load_clients import register_clients, signed_request
from benchmarks.speed.load_model import FILES_BESIDE, make_settings, raise_file_limit, serve_aggregator
from shared.method.settings import method_settings
from shared.protocol.schemas import RunIn
from shared.protocol.signing.events import CHANGES
from shared.protocol.signing.requests import Signatory
from shared.timeouts import WAIT_SECONDS
from simulation.ports import HOST

CURRENT = "/v1/runs/current"
KNOWN = b'"sequence":0'
AT_ONCE = 64  # clients that connect at once
TELLING_SECONDS = 300.0  # longest wait until the last client is told


@dataclass(frozen=True)
class WaitingFigures:
    """Measurements of clients that wait in one way.

    cores: of the aggregator's process while nothing changes. mib: its private memory then; empty_mib: before the
    clients came. opening: processor seconds that it took until all waited. told: seconds until the first and the last
    client knew of the change. lost: connections that ended before.
    """

    way: str
    clients: int
    seconds: float
    cores: float
    mib: int
    empty_mib: int
    opening: float
    first_told: float
    last_told: float
    telling: float
    lost: int


@dataclass
class _Crowd:
    """All clients of one measurement, and what they have been told."""

    waiting: int = 0
    lost: int = 0
    told: list[float] = field(default_factory=list)
    ended: bool = False


class _WaitingClient(asyncio.Protocol):
    """Connection of one client, which asks again after each answer, or holds one."""

    __slots__ = ("_buffer", "_crowd", "_has_asked", "_knows", "_port", "_streams", "_transport", "_who")

    def __init__(self, who: Signatory, port: int, crowd: _Crowd, *, streams: bool) -> None:
        self._who, self._port, self._crowd, self._streams = who, port, crowd, streams
        self._transport: asyncio.Transport | None = None
        self._buffer, self._knows, self._has_asked = b"", False, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._ask()

    def data_received(self, data: bytes) -> None:
        if self._streams:
            self._read_events(data)
        else:
            self._read_answers(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._crowd.lost += not self._crowd.ended

    def _ask(self) -> None:
        assert self._transport is not None
        target = f"{CHANGES}?after=0" if self._streams else f"{CURRENT}?wait={WAIT_SECONDS:g}&after=0"
        self._transport.write(signed_request(self._who, f"{HOST}:{self._port}", target))
        self._crowd.waiting += not self._streams and not self._has_asked
        self._has_asked = True

    def _read_events(self, data: bytes) -> None:
        if b'"kind":"opened"' in data:
            self._crowd.waiting += 1
        if b'"kind":"change"' in data:
            self._note_change()

    def _read_answers(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.partition(b"content-length: ")[2].partition(b"\r")[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._crowd.lost += 1
        elif KNOWN not in body:
            self._note_change()
            return
        self._buffer = b""
        self._ask()

    def _note_change(self) -> None:
        if not self._knows:
            self._knows = True
            self._crowd.told.append(time.monotonic())


def enrol_clients(settings: AggregatorSettings, clients: Sequence[Signatory]) -> None:
    """Writes joined clients into the database of an aggregator that is not running."""
    declaration = settings.declaration()
    settings.state_directory.mkdir(parents=True, exist_ok=True)
    written = declaration.model_dump(mode="json")
    database = Database(settings.state_directory, declaration)
    rows = [{"name": one.name, "counts": None, "joined_at": 0.0, "declaration": written} for one in clients]
    with database.writing() as connection:
        connection.execute(insert(CLIENTS), rows)
    database.close()


async def measure_waiting(clients: int, ways: Sequence[str], seconds: float, folder: Path) -> list[WaitingFigures]:
    """Measures ways of waiting, each with an aggregator of its own."""
    raise_file_limit(clients + FILES_BESIDE)
    return [await _measure_way(way, clients, seconds, folder / way) for way in ways]


async def _measure_way(way: str, clients: int, seconds: float, folder: Path) -> WaitingFigures:
    method = method_settings()
    settings = make_settings(folder, method, clients)
    signatories = register_clients(settings.registry, range(1, clients + 1))
    enrol_clients(settings, signatories)
    crowd = _Crowd()
    async with serve_aggregator(settings, folder / "aggregator.log") as (operator, watcher):
        watcher.sample()
        empty = watcher.samples[-1]
        await _connect_all(signatories, settings.port, crowd, streams=way == "streams")
        await asyncio.sleep(WAIT_SECONDS if way == "polls" else 1.0)  # until polls are spread over their wait
        watcher.sample()
        begin = watcher.samples[-1]
        await asyncio.sleep(seconds)
        watcher.sample()
        end = watcher.samples[-1]
        message = RunIn(rounds=1, clients=clients, method=method).model_dump_json()
        began = time.monotonic()
        starting = asyncio.create_task(operator.post("/v1/runs", content=message))
        async with asyncio.timeout(TELLING_SECONDS):
            while len(crowd.told) < clients - crowd.lost:
                await asyncio.sleep(0.01)
        watcher.sample()
        told = watcher.samples[-1]
        (await starting).raise_for_status()
        crowd.ended = True
    return WaitingFigures(
        way=way,
        clients=clients,
        seconds=end[0] - begin[0],
        cores=(end[1] - begin[1]) / (end[0] - begin[0]),
        mib=max(one[2] for one in watcher.samples if begin[0] <= one[0] <= end[0]),
        empty_mib=empty[2],
        opening=begin[1] - empty[1],
        first_told=crowd.told[0] - began,
        last_told=crowd.told[-1] - began,
        telling=told[1] - end[1],
        lost=crowd.lost,
    )


async def _connect_all(signatories: Sequence[Signatory], port: int, crowd: _Crowd, *, streams: bool) -> None:
    """Connects all clients, a few at once, and waits until each of them waits."""
    loop = asyncio.get_running_loop()
    for number, who in enumerate(signatories):
        await loop.create_connection(lambda who=who: _WaitingClient(who, port, crowd, streams=streams), HOST, port)
        while number + 1 - crowd.waiting - crowd.lost >= AT_ONCE:
            await asyncio.sleep(0.005)
    while crowd.waiting + crowd.lost < len(signatories):
        await asyncio.sleep(0.01)


def waiting_table(found: Sequence[WaitingFigures]) -> str:
    """Renders a row for each way of waiting."""
    heads = ("way", "cores", "MiB", "MiB empty", "kB a client", "opening, s of CPU", "last told, s", "s of CPU", "lost")
    rows = [
        [
            one.way,
            f"{one.cores:.3f}",
            f"{one.mib}",
            f"{one.empty_mib}",
            f"{1024 * (one.mib - one.empty_mib) / one.clients:.1f}",
            f"{one.opening:.1f}",
            f"{one.last_told:.2f}",
            f"{one.telling:.2f}",
            f"{one.lost}",
        ]
        for one in found
    ]
    return render_table(heads, rows)


def as_json(found: Sequence[WaitingFigures]) -> str:
    """Writes the figures as JSON."""
    return json.dumps([asdict(one) for one in found])
