"""A silo's compute thread, and the batching of requests that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from client_service.runtime.device import pin_threads
from shared.errors import FederationError

Given = ParamSpec("Given")
Result = TypeVar("Result")


class TrainingWorker(ThreadPoolExecutor):
    """Worker with one thread that runs functions when it is this silo's turn.

    `threads`: threads of linear algebra. `turns`: lock held while a function runs; silos that share a process share
    it, which limits how many compute at once, and their memory.
    """

    def __init__(self, threads: int, turns: AbstractContextManager[object]) -> None:
        super().__init__(1, "training", initializer=pin_threads, initargs=(threads,))
        self._turns = turns

    def submit(self, function: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Submits a function, which begins when it is this silo's turn."""
        return super().submit(self._run_in_turn, partial(function, *args, **kwargs))

    def _run_in_turn(self, function: Callable[[], Result]) -> Result:
        with self._turns:
            try:
                return function()
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                if isinstance(error, StopIteration):  # no future can hold it, so its reader would wait for ever
                    raise RuntimeError("expected a result, got StopIteration") from None
                raise
            except BaseException as error:  # a library's panic, which nobody above would count as an error
                raise RuntimeError(f"expected a result, got {type(error).__name__}") from None


Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MOST = 64  # in one group, so that nobody's answer waits for hundreds of others


class RequestBatcher(Generic[Asked, Answer]):
    """Batches requests: those that arrive during a batch form the next one.

    compute: returns a batch's answers in order, each an answer or the error of that request. An error that it raises
    fails the whole batch. most: requests in a batch. weigh, heaviest: the cost of a request, and the largest cost of
    a batch.
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
        """Returns the answer to one request."""
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
        """Takes the next batch of requests whose callers still wait."""
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
