"""What a test tells a silo over HTTP, and what it asks about it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx

from tests.support.given import Until
from tests.support.questions import read

Serving = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
"""`async with serving(kept_models=1) as http`: a client that serves its model, with these changes of its settings."""


def event(user: str, item: str, number: int = 0, **more: Any) -> dict[str, Any]:
    return {"event": f"{user}-{item}-{number}", "user": user, "item": item, **more}


async def post(http: httpx.AsyncClient, *events: dict[str, Any]) -> dict[str, Any]:
    """What became of them, all of which are taken."""
    answer = await http.post("/v1/interactions", json={"interactions": list(events)})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def items_of(http: httpx.AsyncClient, user: str, query: str = "k=40") -> dict[str, Any]:
    answer = await http.get(f"/v1/users/{user}/recommendations?{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def rests(http: httpx.AsyncClient) -> bool:
    return bool((await read(http, "refresh"))["phase"] == "idle")


async def refresh(http: httpx.AsyncClient, until: Until) -> dict[str, Any]:
    """Ask for a refresh, and what it did once it is done."""
    assert (await http.post("/v1/refresh")).status_code == 202
    await until(lambda: rests(http))
    return await read(http, "refresh")


async def serves(http: httpx.AsyncClient) -> bool:
    return (await read(http, "status")).get("model") is not None


async def is_erased(http: httpx.AsyncClient, receipt: str) -> bool:
    return (await read(http, f"erasures/{receipt}"))["done_at"] is not None
