"""A change of the shard waits for the round at hand -> the round gives way once it has waited long enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class GaveWay(Exception):
    """The round is left where it is, as a kill would leave it. None of the errors' tree: nothing is wrong."""


class RoundPatience:
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
    def seconds_left(self) -> float:
        """Seconds; infinity where nobody waits."""
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Raises GaveWay once the time is over."""
        if self.seconds_left == 0.0:
            raise GaveWay
