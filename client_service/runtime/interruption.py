"""Interrupts slow work in another thread: on request, or when a round must end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")


class Interrupted(Exception):
    """Slow work was asked to end. None of the errors' tree: nothing is wrong, and nobody may try again."""


class Interrupt:
    """Looked at between two steps of slow work, which takes no time worth naming, and set once, for good."""

    def __init__(self) -> None:
        self._wished = threading.Event()
        self._inner: WeakSet[Interrupt] = WeakSet()

    def set(self) -> None:
        self._wished.set()
        for one in list(self._inner):
            one.set()

    @property
    def is_set(self) -> bool:
        return self._wished.is_set()

    def within(self) -> Interrupt:
        """One for a part of the work: it is set with this one, and may be set alone."""
        found = Interrupt()
        self._inner.add(found)
        if self._wished.is_set():
            found.set()
        return found

    def check(self) -> None:
        """Raises Interrupted once it is set."""
        if self._wished.is_set():
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Let so much time pass; raises Interrupted as soon as it is set."""
        if self._wished.wait(seconds):
            raise Interrupted

    def each(self, steps: Iterable[T]) -> Iterator[T]:
        """The steps, with a look before each is taken."""
        for step in steps:
            self.check()
            yield step

    def before(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, with a look before each call."""

        def looked(*args: P.args, **kwargs: P.kwargs) -> T:
            self.check()
            return function(*args, **kwargs)

        return looked


NEVER = Interrupt()
"""For work that nobody interrupts: nothing sets it."""


class RoundAborted(Exception):
    """The round is left where it is, as a kill would leave it. None of the errors' tree: nothing is wrong."""


class RoundDeadline:
    """Looked at by whoever waits for others in a round, between two polls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._until = clock, float("inf")

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        """Somebody waits from now on, and no longer than so many seconds."""
        self._until = self._clock() + seconds
        try:
            yield
        finally:
            self._until = float("inf")

    @property
    def remaining(self) -> float:
        """Seconds; infinity where nobody waits."""
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Raises GaveWay once the time is over."""
        if self.remaining == 0.0:
            raise RoundAborted
