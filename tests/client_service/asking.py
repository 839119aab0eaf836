"""What a test asks a client, or finds in its ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from client_service.settings import ClientSettings


async def read(http: httpx.AsyncClient, what: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"/v1/{what}")).json()
    return found


def finished(*clients: httpx.AsyncClient, run: str = "run-1") -> Callable[[], Any]:
    """Have all of them evaluated that run?"""

    async def look() -> bool:
        found = [(await read(http, "quality"), await read(http, "status")) for http in clients]
        over = [quality["run"] == run and quality["finished"] for quality, _ in found]
        return all(over) and all(status["phase"] in ("finished", "failed") for _, status in found)

    return look


def uploads(settings: ClientSettings) -> list[dict[str, Any]]:
    """The intents of its updates."""
    lines = (settings.state_directory / "ledger.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry.get("call") == "update"]
