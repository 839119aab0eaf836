"""What tests of several engines hold their outcomes against."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.experiments.federation import Outcome, Progress


def _describe(outcome: Outcome) -> dict[str, Any]:
    """All that a run gives but its times, by client."""
    rounds = {
        name: [(entry.round, entry.values, entry.scalars, entry.bytes_up) for entry in quality.rounds]
        for name, quality in outcome.qualities.items()
    }
    return {
        name: (status.shared_digest, outcome.qualities[name].test, rounds[name])
        for name, status in sorted(outcome.statuses.items())
    }


@pytest.fixture
def found() -> Any:
    """The function that tells of an outcome what two engines must agree upon."""
    return _describe


class Interrupt:
    """An observer that ends the run at one of its steps, once; `all_steps` counts those of a whole run."""

    def __init__(self, after: int) -> None:
        self.left, self.seen = after, 0

    def __call__(self, seen: Progress) -> None:
        del seen
        self.seen += 1
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture
def interrupt() -> type[Interrupt]:
    return Interrupt
