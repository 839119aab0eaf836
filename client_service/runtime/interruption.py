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
    """Signal that slow work was interrupted; it is no error, and needs no retry."""


class Interrupt:
    """Flag that interrupts slow work: set once, checked between two steps.

    A check takes almost no time.
    """

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

    def child(self) -> Interrupt:
        """Returns an interrupt for a part of the work: set with this one, or alone."""
        found = Interrupt()
        self._inner.add(found)
        if self._wished.is_set():
            found.set()
        return found

    def check(self) -> None:
        """Raises Interrupted once the flag is set."""
        if self._wished.is_set():
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Waits; raises Interrupted as soon as the flag is set."""
        if self._wished.wait(seconds):
            raise Interrupted

    def check_each(self, steps: Iterable[T]) -> Iterator[T]:
        """Yields the steps, checking the flag before each."""
        for step in steps:
            self.check()
            yield step

    def check_before(self, function: Callable[P, T]) -> Callable[P, T]:
        """Wraps a function so that the flag is checked before each call."""

        def check_and_call(*args: P.args, **kwargs: P.kwargs) -> T:
            self.check()
            return function(*args, **kwargs)

        return check_and_call


NEVER = Interrupt()
"""Interrupt that is never set, for work that is not interrupted."""


class RoundAborted(Exception):
    """Aborts the current round, as if the process were killed. Not an error."""


class RoundDeadline:
    """Deadline of waiting for other silos in a round, checked between two polls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._until = clock, float("inf")

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Sets the deadline for the duration of a block."""
        self._until = self._clock() + seconds
        try:
            yield
        finally:
            self._until = float("inf")

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; infinity without one."""
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Raises RoundAborted once the time is over."""
        if self.remaining == 0.0:
            raise RoundAborted
