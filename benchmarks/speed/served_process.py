"""Measures a silo's server from outside: memory, start, steady load, lists after events."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import math
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from benchmarks.speed.wrk import LoadTarget

CONNECTIONS = 8  # of a steady load: one slow answer delays an eighth of the others
WAIT_SECONDS = 60.0  # for one answer
START_SECONDS = 120.0


@dataclass(frozen=True)
class Memory:
    """The memory of one process, in MB.

    resident: all. private: what no other process shares now. anonymous: without pages of mapped files, which the system
    can drop and another process can share.
    """

    resident: float
    private: float
    anonymous: float


def measure_memory(pid: int) -> Memory:
    """Reads the memory of a process from the system."""
    told = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    sizes = {name: int(size) / 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB", told, re.MULTILINE)}
    return Memory(
        round(sizes["Rss"], 1), round(sizes["Private_Clean"] + sizes["Private_Dirty"], 1), round(sizes["Anonymous"], 1)
    )


def child_processes(pid: int) -> dict[int, str]:
    """Finds the processes that a process has started, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            words = path.with_name("cmdline").read_text(encoding="utf-8").replace("\0", " ")
        except OSError:  # the process has ended
            continue
        if parent == pid:
            found[int(path.parent.name)] = words
    return found


def write_request(method: str, path: str, key: str, content: Any = None) -> bytes:
    """Writes the bytes of a request on a connection that stays open."""
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{head}{kind}\r\n".encode() + body


class RequestConnection:
    """A plain HTTP connection for timing requests.

    A library's client takes longer for a request than the server does.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> Any:
        """Sends a request and returns the content of the answer.

        Raises ValueError for a status other than 2xx, and ConnectionError for an incomplete answer.
        """
        self._socket.sendall(request)
        came = b""
        while (found := _split(came)) is None:
            if not (piece := self._socket.recv(1 << 16)):
                raise ConnectionError("expected a whole answer, the connection ended")
            came += piece
        return _read(*found)

    def close(self) -> None:
        self._socket.close()


def _split(came: bytes) -> tuple[bytes, bytes] | None:
    """Splits an answer into head and body; None while it is incomplete."""
    head, end, body = came.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    if not end or length is None or len(body) < int(length[1]):
        return None
    return head, body


def _read(head: bytes, body: bytes) -> Any:
    if not head.startswith(b"HTTP/1.1 2"):
        raise ValueError(f"expected a status of 2xx, got {head[:40]!r}")
    return json.loads(body)


@contextmanager
def open_connection(url: str) -> Iterator[RequestConnection]:
    line = RequestConnection(url)
    try:
        yield line
    finally:
        line.close()


def list_path(user: str) -> str:
    return f"/v1/users/{quote(user, safe='')}/recommendations"


def measure_lists_after_events(target: LoadTarget, users: Sequence[str]) -> list[float]:
    """Measures the milliseconds of each user's next list after an event.

    Raises AssertionError if a list does not take account of the event.
    """
    times = []
    with open_connection(target.url) as line:
        for place, user in enumerate(users):
            asked = write_request("GET", list_path(user), target.key)
            best = line.ask(asked)["items"][0]["item"]
            event = {"event": f"one-{place}", "user": user, "item": best}
            line.ask(write_request("POST", "/v1/interactions", target.key, {"interactions": [event]}))
            began = time.perf_counter()
            after = line.ask(asked)
            times.append(1000 * (time.perf_counter() - began))
            assert best not in [one["item"] for one in after["items"]], (
                "expected the next list without the item of the event, got one with it"
            )
    return times


def measure_start(start: Callable[[], Any], target: LoadTarget, user: str) -> float:
    """Measures the seconds from the start of a process to a list by the model.

    Raises TimeoutError if none comes within START_SECONDS.
    """
    began = time.perf_counter()
    start()
    while time.perf_counter() - began < START_SECONDS:
        try:
            with open_connection(target.url) as line:
                if "model" in line.ask(write_request("GET", list_path(user), target.key)):
                    return time.perf_counter() - began
        except (OSError, ValueError):
            pass
        time.sleep(0.01)
    raise TimeoutError(f"expected a list by the model within {START_SECONDS:g} s, got none")


@dataclass(frozen=True)
class Timed:
    """One answer of a steady load.

    due: when it was to be requested, in seconds after the first one. took: milliseconds from then to the answer.
    model: the version that answered.
    """

    due: float
    took: float
    model: str | None


async def load_until_swapped(
    target: LoadTarget, users: Sequence[str], each_second: int, *, beyond: float = 2.0, most: float = 300.0
) -> list[Timed]:
    """Requests lists at a steady rate until another model answers.

    Requests are due `each_second` times a second, whether earlier ones are answered or not, and go on for `beyond`
    seconds after the other model's first answer. Raises TimeoutError if none answers within `most` seconds.
    """
    parts, found, began, until = urlsplit(target.url), list[Timed](), time.perf_counter(), math.inf

    async def request_lists(first: int) -> None:
        nonlocal until
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for number in itertools.count(first, CONNECTIONS):
            due = began + number / each_second
            if due > min(until, began + most):
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer.write(write_request("GET", list_path(users[number % len(users)]), target.key))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            model = _read(head, await reader.readexactly(int(length[1]))).get("model")
            found.append(Timed(due - began, 1000 * (time.perf_counter() - due), model))
            if model != found[0].model and until == math.inf:
                until = time.perf_counter() + beyond
        writer.close()

    gc.disable()
    try:
        await asyncio.gather(*(request_lists(first) for first in range(CONNECTIONS)))
    finally:
        gc.enable()
    if until == math.inf:
        raise TimeoutError(f"expected another model within {most:g} s, got none")
    return sorted(found, key=lambda one: one.due)


def percentiles(times: Sequence[float], *which: float) -> list[float]:
    return [round(float(one), 2) for one in np.percentile(times, which)] if times else [float("nan")] * len(which)
