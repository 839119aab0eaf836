"""Batches of writes, each in one transaction.

Writes that come while one batch is stored are in the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio
from anyio import to_thread

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Outcomes = Sequence[Outcome | Exception]


def in_own_thread(
    store: Callable[[Sequence[Item]], Outcomes[Outcome]],
) -> Callable[[Sequence[Item]], Awaitable[Outcomes[Outcome]]]:
    """Returns a function that runs `store` in a thread of its own.

    All other threads may wait for the database.
    """
    limiter: anyio.CapacityLimiter | None = None

    async def run(given: Sequence[Item]) -> Outcomes[Outcome]:
        nonlocal limiter
        limiter = limiter or anyio.CapacityLimiter(1)
        return await to_thread.run_sync(store, given, limiter=limiter)

    return run


class WriteBatches(Generic[Item, Outcome]):
    """Batches of one kind of writes; `store` stores one of them.

    It returns an outcome or an error for each item. gather_seconds: between the starts of two batches, where several
    items come at once: a transaction costs more than its rows. A caller alone waits for nobody.
    """

    def __init__(
        self, store: Callable[[Sequence[Item]], Awaitable[Outcomes[Outcome]]], *, gather_seconds: float = 0.0
    ) -> None:
        self._store, self._gather_seconds = store, gather_seconds
        self._due = 0.0  # time before which no further batch starts
        self._given: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._storing: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Outcome:
        """Stores an item before it returns; raises the error of its transaction, or its own."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._given.append((item, outcome))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store_given())
        return await outcome

    async def _store_given(self) -> None:
        try:
            while self._given:
                if (left := self._due - time.monotonic()) > 0:
                    await asyncio.sleep(left)
                given, self._given = self._given, []
                self._due = time.monotonic() + self._gather_seconds if len(given) > 1 else 0.0
                found: Outcomes[Outcome]
                try:
                    found = await self._store([item for item, _ in given])
                except Exception as error:
                    found = [error] * len(given)
                for (_, waiting), outcome in zip(given, found, strict=True):
                    if waiting.done():  # its caller has left
                        continue
                    if isinstance(outcome, Exception):
                        waiting.set_exception(outcome)
                    else:
                        waiting.set_result(outcome)
        finally:
            self._storing = None
