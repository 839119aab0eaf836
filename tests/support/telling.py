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
    """Ask for a refresh, and what it did once it is done. One that began by itself is waited for first."""
    numbers = list[int]()

    async def begun() -> bool:
        answer = await http.post("/v1/refresh")
        assert answer.status_code in (202, 409), answer.text
        if answer.status_code == 202:
            numbers.append(answer.json()["number"])
        return bool(numbers)

    await until(begun)
    return await ended(http, until, numbers[0])


async def ended(http: httpx.AsyncClient, until: Until, number: int) -> dict[str, Any]:
    """What the refresh of that number did, or a later one."""
    found: dict[str, Any] = {}

    async def look() -> bool:
        nonlocal found
        found = await read(http, "refresh")
        return bool(found["last_ended"] >= number and found["phase"] == "idle")

    await until(look)
    return found


async def serves(http: httpx.AsyncClient) -> bool:
    return (await read(http, "status")).get("model") is not None


async def all_listed(http: httpx.AsyncClient) -> bool:
    """Checks if every known user's list is computed; until then, scores by the table answer some of them."""
    return bool((await read(http, "status")).get("listed") == 1.0)


async def is_erased(http: httpx.AsyncClient, receipt: str) -> bool:
    return (await read(http, f"erasures/{receipt}"))["done_at"] is not None
