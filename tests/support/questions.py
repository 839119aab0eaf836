"""What a test asks a service, or finds in a client's ledger."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import anyio
import httpx

from client_service.settings import ClientSettings

Question = Callable[[], Awaitable[bool]]
LONGEST_SECONDS = 300.0  # a bound alone: where much else runs everything takes long
PAUSE_SECONDS = 0.005


async def wait_until(holds: Question) -> None:
    """Look again and again whether something is so; a test in which it never is ends in time."""
    with anyio.fail_after(LONGEST_SECONDS):
        while not await holds():
            await anyio.sleep(PAUSE_SECONDS)


async def read(http: httpx.AsyncClient, what: str) -> dict[str, Any]:
    """An answer of the API, by its path below /v1."""
    answer: dict[str, Any] = (await http.get(f"/v1/{what}")).json()
    return answer


def as_step(name: str) -> str:
    """An id as one step of a path, from which httpx takes the steps `.` and `..` away."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def finished(*clients: httpx.AsyncClient, run: str = "run-1") -> Question:
    """Have all of them evaluated that run?"""

    async def ended(http: httpx.AsyncClient) -> bool:
        quality = await read(http, "quality")
        if quality["run"] != run or not quality["finished"]:
            return False
        return (await read(http, "status"))["phase"] in ("finished", "failed", "waiting")

    async def look() -> bool:
        for http in clients:
            if not await ended(http):
                return False
        return True

    return look


def has_problem(http: httpx.AsyncClient, words: str) -> Question:
    """Does the client show its operator a problem with these words?"""

    async def look() -> bool:
        return words in ((await read(http, "status")).get("problem") or "")

    return look


def in_phase(http: httpx.AsyncClient, phase: str) -> Question:
    async def look() -> bool:
        return bool((await read(http, "status"))["phase"] == phase)

    return look


def is_set(event: threading.Event) -> Question:
    async def look() -> bool:
        return event.is_set()

    return look


def entries_of(settings: ClientSettings) -> list[dict[str, Any]]:
    """The lines of a client's ledger."""
    lines = (settings.state_directory / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def uploads(settings: ClientSettings) -> list[dict[str, Any]]:
    """The intents of its updates."""
    return [entry for entry in entries_of(settings) if entry.get("call") == "update"]
