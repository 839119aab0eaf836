"""Schedule of calls to the aggregator: when each call, and each repetition, may be made.

- A poll that was answered at once without news is repeated after `least` seconds. One that the aggregator held for
longer is repeated at once.
- Answers with news are followed at once, up to `BURST` of one kind; then `least` seconds count for them too, because
an aggregator may make up news without end. An accepted update resets this, so a client with work to do never waits.
- While the aggregator is away, or answers 5xx or 429, the pause is drawn between 0 and a bound that doubles with each
failure (full jitter), so that many clients do not come back at the same moment.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from shared.errors import ConflictError, FederationError, UnavailableError
from shared.timeouts import LONG_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, POLL_SECONDS

BURST = 20.0  # answers with news to one question that are followed at once
MOST_QUESTIONS = 32  # kinds of calls that are remembered; the least recently used is forgotten first
MOST_DOUBLINGS = 16
ROUNDING = 1e-6  # of a token: a sleep may end a little too early

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]
Draw = Callable[[float, float], float]


@dataclass
class _TokenBucket:
    """Calls of one kind that may be made at once, as counted at a time."""

    tokens: float
    updated: float


class RetrySchedule:
    """Schedule of one client's calls.

    `draw`: draws a number between two others.
    """

    def __init__(
        self,
        least: float = POLL_SECONDS,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        draw: Draw = random.uniform,
    ) -> None:
        self._least, self.clock, self._sleep, self._draw = least, clock, sleep, draw
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()
        self._failed_calls = self._failed_steps = 0
        self._not_before = 0.0

    async def wait_turn(self, question: str) -> None:
        """Waits until a call of this kind may be made."""
        while (wait := max(self._not_before - self.clock(), self._seconds_to_wait(question))) > 0.0:
            await self._sleep(wait)
        self._buckets[question].tokens -= 1.0

    def record_answer(self, question: str, *, news: bool) -> None:
        """Records that the aggregator has answered; without news the next such call waits."""
        self._failed_calls = 0
        if not news and question in self._buckets:
            self._buckets[question].tokens = 0.0

    def reset_bursts(self) -> None:
        """Lets every call be made at once again, after an accepted update."""
        self._buckets.clear()

    def record_failed_call(self, retry_after: float | None = None) -> float:
        """Records a failed call, and returns the seconds until the next.

        retry_after: seconds that the aggregator asks to wait.
        """
        self._failed_calls += 1
        pause = max(
            self._draw(0.0, _longest_pause(PAUSE_SECONDS, self._failed_calls)),
            min(retry_after or 0.0, LONGEST_PAUSE_SECONDS),
        )
        return self.delay(pause)

    def record_failure(self, error: FederationError) -> None:
        """Records that work ended in an error; the next call waits."""
        self._failed_steps += 1
        temporary = isinstance(error, UnavailableError | ConflictError)
        base = PAUSE_SECONDS if temporary else LONG_PAUSE_SECONDS
        least = 0.0 if isinstance(error, UnavailableError) else base
        self.delay(self._draw(least, _longest_pause(base, self._failed_steps)))

    def record_success(self) -> None:
        """Records that the work of a state of the run is done."""
        self._failed_steps = 0

    def delay(self, pause: float) -> float:
        """Delays all calls; returns the seconds until the next."""
        self._not_before = max(self._not_before, self.clock() + pause)
        return self._not_before - self.clock()

    def _seconds_to_wait(self, question: str) -> float:
        """Returns the seconds until a call of this kind may be made; 0: now."""
        if self._least == 0.0:
            self._buckets[question] = _TokenBucket(BURST, 0.0)
            return 0.0
        now = self.clock()
        known = self._buckets.pop(question, _TokenBucket(BURST, now))
        tokens = min(BURST, known.tokens + (now - known.updated) / self._least)
        self._buckets[question] = _TokenBucket(tokens, now)
        if len(self._buckets) > MOST_QUESTIONS:
            self._buckets.popitem(last=False)
        return 0.0 if tokens > 1.0 - ROUNDING else (1.0 - tokens) * self._least


def read_retry_after(answer: httpx.Response) -> float | None:
    """Reads the header Retry-After, where it is a number of seconds."""
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _longest_pause(base: float, times: int) -> float:
    """Returns the longest pause after a number of failures in a row; at least `base`."""
    return max(base, min(LONGEST_PAUSE_SECONDS, base * 2.0 ** min(times - 1, MOST_DOUBLINGS)))
