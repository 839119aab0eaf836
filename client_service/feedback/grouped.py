"""Calls of several threads that wait for the disk -> done together, so that they wait for it once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from shared.errors import FederationError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Grouped(Generic[Asked, Answer]):
    """`work`: gives each of several calls its answer, or an error of its own; where it raises, all of them fail. It is
    done by one thread at a time, with at most `most` of the calls that have come meanwhile, the earliest first."""

    def __init__(self, work: Callable[[Sequence[Asked]], Sequence[Answer | FederationError]], most: int) -> None:
        self._work, self._most = work, most
        self._arriving, self._turn = threading.Lock(), threading.Lock()
        self._waiting: list[tuple[Asked, Future[Answer]]] = []

    def ask(self, asked: Asked) -> Answer:
        """The answer to this call, once it is there."""
        future = Future[Answer]()
        with self._arriving:
            self._waiting.append((asked, future))
        while not future.done():
            with self._turn:
                if not future.done():
                    self._work_off()
        return future.result()

    def _work_off(self) -> None:
        with self._arriving:
            group, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        try:
            answers = self._work([asked for asked, _ in group])
        except BaseException as error:  # each caller raises it, as if it had been alone
            for _, future in group:
                future.set_exception(error)
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if isinstance(answer, FederationError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
