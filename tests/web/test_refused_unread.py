"""Whoever sends a body that is refused unread learns why: the rest is taken in for a moment, though nobody reads it."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from shared.errors import ForbiddenError
from shared.web.listening import Listening
from shared.web.problems import answer

if TYPE_CHECKING:
    from conftest import Papers, Served

BODY = bytes(300_000)  # more than fits into what the system buffers by itself
CALLERS, CALLS = 8, 5


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    """No part of a body is read."""
    await answer(ForbiddenError("not yours"))(scope, receive, send)


@pytest.mark.parametrize("by_tls", [True, False])
def test_a_refusal_reaches_a_caller_who_is_still_sending(served: Served, papers: Papers, by_tls: bool) -> None:
    app = FastAPI()
    app.mount("/", refusing)
    settings = Listening(**papers.port()) if by_tls else Listening()
    believed = ssl.create_default_context(cafile=papers.crt("authority"))

    async def call(url: str) -> list[int]:
        async with httpx.AsyncClient(verify=believed, trust_env=False, timeout=60) as http:
            return [(await http.put(url, content=BODY)).status_code for _ in range(CALLS)]

    async def all_of_them(url: str) -> list[list[int]]:
        return await asyncio.gather(*(call(url) for _ in range(CALLERS)))

    with served(app, settings) as url:
        assert asyncio.run(all_of_them(url)) == [[403] * CALLS] * CALLERS
