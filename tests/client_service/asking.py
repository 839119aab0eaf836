"""What a test asks a federation or a client, or finds in its ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import FastAPI

from aggregator_service.app import create_app
from aggregator_service.settings import aggregator_settings
from client_service.settings import ClientSettings, client_settings
from shared.method.settings import MethodSettings

if TYPE_CHECKING:
    from conftest import LeapingClock

TOKEN = "operator-token-of-the-tests"


@dataclass(frozen=True)
class Federation:
    """The running aggregator, and the settings of clients who could take part."""

    app: FastAPI
    operator: httpx.AsyncClient
    clock: LeapingClock
    clients: tuple[ClientSettings, ...]

    def line(self) -> httpx.AsyncBaseTransport:
        """A way to the aggregator."""
        return httpx.ASGITransport(self.app)

    async def start(self, **request: Any) -> None:
        method = self.clients[0].method.model_dump(mode="json")
        asked = {"rounds": 2, "clients": len(self.clients), "method": method} | request
        answer = await self.operator.post("/v1/runs", json=asked)
        assert answer.status_code == 201, answer.text

    async def history(self, run: str = "run-1") -> dict[str, Any]:
        found: dict[str, Any] = (await self.operator.get(f"/v1/runs/{run}")).json()
        return found


@asynccontextmanager
async def federated(
    folder: Path,
    shards: tuple[Path, ...],
    method: MethodSettings,
    clock: LeapingClock,
    keys: Path,
    privacy: dict[str, Any],
) -> AsyncIterator[Federation]:
    """An aggregator in `folder`, and settings of a client for each shard; the first one's `privacy` is this."""
    common: dict[str, Any] = {"strategy": "lpsfed", "method": method}
    settings = aggregator_settings(
        state_directory=folder / "aggregator", operator_token=TOKEN, keys_directory=keys, **common
    )
    app = create_app(settings, clock=clock)
    clients = tuple(
        client_settings(
            name=shard.name,
            shard=shard,
            state_directory=folder / shard.name,
            aggregator_url="http://aggregator",
            device="cpu",
            wait_seconds=5.0,
            privacy=privacy if shard is shards[0] else {},
            **common,
        )
        for shard in shards
    )
    said = {"Authorization": f"Bearer {TOKEN}"}
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://aggregator", headers=said)
    async with app.router.lifespan_context(app), http:
        yield Federation(app, http, clock, clients)


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
