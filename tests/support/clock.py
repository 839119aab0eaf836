"""A clock that a test moves."""

from __future__ import annotations

import time


class LeapingClock:
    """The aggregator's clock. A deadline passes when a test says so, not when the machine is busy."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def pass_the_deadline(self) -> None:
        self.ahead += 7200.0
