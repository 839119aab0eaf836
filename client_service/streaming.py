"""Lists for very many users -> lines of JSON, a chunk of users computed at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from fastapi import Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from client_service.serving.messages import RecommendationsOut
from shared.timeouts import SILENCE_SECONDS
from shared.web.content_types import JSON, prefers

NDJSON: Final = "application/x-ndjson"
CHUNK = 100  # users whose lists are in memory at a time
Compute = Callable[[Sequence[str]], Sequence[RecommendationsOut]]


class _Lines(StreamingResponse):
    """Ends where the caller takes nothing for so long: what waits to be sent is bounded, and so is the wait."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SILENCE_SECONDS):
                await send(message)

        await super().__call__(scope, receive, send_in_time)


def wants_lines(accept: str) -> bool:
    """Does an Accept header prefer lines to one document?"""
    return prefers(accept, NDJSON, JSON)


def stream_lists(users: Sequence[str], compute: Compute) -> Response:
    """A line for each user, in this order."""
    return _Lines(_write_lines(users, compute), media_type=NDJSON, headers={"Cache-Control": "no-store"})


async def _write_lines(users: Sequence[str], compute: Compute) -> AsyncIterator[bytes]:
    for first in range(0, len(users), CHUNK):
        yield await run_in_threadpool(_write_chunk, users[first : first + CHUNK], compute)


def _write_chunk(users: Sequence[str], compute: Compute) -> bytes:
    return b"".join(one.model_dump_json(exclude_none=True).encode() + b"\n" for one in compute(users))
