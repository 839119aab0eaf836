"""What each client says of itself, over time -> an error once one of them cannot go on.

A client tries again for as long as its run lasts. In one process nothing can heal that, so nobody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from shared.errors import FederationError
from simulation.federation import Observe, Progress

STUCK_SECONDS = 5.0  # a client that shows the same problem for so long will not get over it by itself


def fail_when_stuck(observe: Observe, clock: Callable[[], float] = time.monotonic) -> Observe:
    """An observer that calls `observe`, and raises FederationError for a client with one problem for STUCK_SECONDS."""
    since: dict[tuple[str, str], float] = {}

    def observe_and_check(seen: Progress) -> None:
        observe(seen)
        problems = {(name, status.problem) for name, status in seen.statuses.items() if status.problem}
        for gone in since.keys() - problems:
            del since[gone]
        for name, problem in sorted(problems):
            if clock() - since.setdefault((name, problem), clock()) >= STUCK_SECONDS:
                raise FederationError(f"{name} cannot go on: {problem}")

    return observe_and_check
