"""Lists for very many users -> lines of JSON, a chunk of users computed at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from anyio import CapacityLimiter, to_thread
from fastapi import Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from client_service.serving.messages import RecommendationsOut
from shared.timeouts import SILENCE_SECONDS
from shared.web.content_types import JSON, prefers

NDJSON: Final = "application/x-ndjson"
CHUNK = 100  # users whose lists are in memory at a time
THREADS = 2  # of all streams of one service
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


def stream_lists(users: Sequence[str], compute: Compute, threads: CapacityLimiter) -> Response:
    """A line for each user, in this order. threads: those that all streams together have, so that others find some."""
    return _Lines(_write_lines(users, compute, threads), media_type=NDJSON, headers={"Cache-Control": "no-store"})


async def _write_lines(users: Sequence[str], compute: Compute, threads: CapacityLimiter) -> AsyncIterator[bytes]:
    for first in range(0, len(users), CHUNK):
        yield await to_thread.run_sync(_write_chunk, users[first : first + CHUNK], compute, limiter=threads)


def _write_chunk(users: Sequence[str], compute: Compute) -> bytes:
    return b"".join(one.model_dump_json(exclude_none=True).encode() + b"\n" for one in compute(users))
