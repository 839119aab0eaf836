"""Requests that come while one is worked on -> one group, which is next: they share the passes over the items, or the
wait for the disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from shared.errors import FederationError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MOST = 64  # in one group, so that nobody's answer waits for hundreds of others


class Together(Generic[Asked, Answer]):
    """Answers requests in a worker thread, a group of them at a time, in the order in which they came.

    compute: a group's answers in its order, or an error of one request alone. What it raises reaches everybody in the
    group. most: requests in one. weigh, heaviest: what a request takes, and what a group of several takes at most.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Asked]], Sequence[Answer | FederationError]],
        most: int = MOST,
        *,
        weigh: Callable[[Asked], int] = lambda _: 1,
        heaviest: int | None = None,
    ) -> None:
        self._compute, self._most = compute, most
        self._weigh, self._heaviest = weigh, most if heaviest is None else heaviest
        self._waiting: deque[tuple[Asked, asyncio.Future[Answer]]] = deque()
        self._working: asyncio.Task[None] | None = None

    async def ask(self, asked: Asked) -> Answer:
        """The answer to one request."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while group := self._next_group():
                await self._answer(group)
        finally:
            self._working = None

    def _next_group(self) -> list[tuple[Asked, asyncio.Future[Answer]]]:
        """Of those who still wait."""
        group: list[tuple[Asked, asyncio.Future[Answer]]] = []
        weight = 0
        while self._waiting and len(group) < self._most:
            asked, future = self._waiting[0]
            if not future.done():
                weight += self._weigh(asked)
                if group and weight > self._heaviest:
                    break
                group.append((asked, future))
            self._waiting.popleft()
        return group

    async def _answer(self, group: Sequence[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await asyncio.to_thread(self._compute, [asked for asked, _ in group])
        except Exception as error:  # each caller's route tells it, as if it had computed alone
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, FederationError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
