"""A genuine client that an aggregator keeps busy, in a time of their own."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client_service.boundary import aggregator, pace
from client_service.boundary.pace import Pace
from client_service.settings import client_settings
from shared import timeouts
from shared.method.settings import MethodSettings
from tests.attacks.hasty import LEAST, Answer, Attacked, Hasty, VirtualTime, told

if TYPE_CHECKING:
    from conftest import Opened, Silos


@pytest.fixture
def attacked(
    silos: Silos, small: MethodSettings, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> Attacked:
    """It follows for five minutes; its way to the aggregator and its state after that."""
    (shard,) = silos(1)
    for name in ("PAUSE_SECONDS", "AWAY_SECONDS", "LONG_PAUSE_SECONDS"):
        monkeypatch.setattr(pace, name, getattr(timeouts, name))
    monkeypatch.setattr(aggregator, "ATTEMPTS", timeouts.ATTEMPTS)

    async def follow(answer: Answer, *, seed: int = 0) -> tuple[Hasty, Path]:
        time, state = VirtualTime(), tmp_path / f"state-{seed}"
        own = {"clock": time.clock, "sleep": time.sleep, "draw": random.Random(seed).uniform}
        monkeypatch.setattr(aggregator, "Pace", partial(Pace, **own))
        way = Hasty(time, answer)
        said: dict[str, Any] = {"name": shard.name, "shard": shard, "state_directory": state, "method": small}
        settings = client_settings(aggregator_url="http://aggregator", device="cpu", poll_seconds=LEAST, **said)
        async with opened(settings, way), asyncio.timeout(20.0):  # a bound alone
            await way.over.wait()
        print("\n" + told(getattr(answer, "__name__", "several"), way, state))  # noqa: T201 - for the documents
        return way, state

    return follow
