"""Fifty clients for hundreds of rounds: what the aggregator holds does not grow.

LPSFED_SOAK_ROUNDS and LPSFED_SOAK_CLIENTS say how many; by default 200 and 50.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import numpy as np
import pytest

from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from shared.protocol.wire import encode_body
from shared.strategies import build_strategy
from tests.system.soak.light import Federation, Light, federation

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ROUNDS = int(os.environ.get("LPSFED_SOAK_ROUNDS", "200"))
CLIENTS = int(os.environ.get("LPSFED_SOAK_CLIENTS", "50"))
WARM_UP = 4  # one part in so many of the rounds: allocators and caches fill
ALLOWED = 4.0  # mebibytes that the trend may add over all rounds after the warm-up, whatever the noise
NOISE = 3.0  # or so many standard deviations of what is around the trend
FEW_DESCRIPTORS = 3  # SQLite and the worker threads open one or two for a moment


@dataclass
class Course:
    """One figure a round."""

    resident: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, running: Federation) -> None:
        self.resident.append(running.gauge.resident())
        self.descriptors.append(running.gauge.descriptors())


def trend(values: list[float]) -> tuple[float, float]:
    """What a straight line adds from the first to the last value, and the deviation around it."""
    x, y = np.arange(len(values)), np.array(values)
    slope, level = np.polyfit(x, y, 1)
    return float(slope * (len(values) - 1)), float(np.std(y - (slope * x + level)))


def updates(client: Light, seed: int) -> dict[str, Float32]:
    generator = np.random.default_rng(seed)
    return {s.name: generator.normal(0, 0.1, s.shape).astype(np.float32) for s in client.declaration.tensors}


async def lived(client: Light, seed: int, number: int) -> None:
    """One round of one client; its update is another one each time."""
    body = encode_body(Parameters(updates(client, seed), {"margin": number / 1000, "rho": seed / 100 + number / 1e6}))
    await client.upload(number, body)
    assert await client.fetch(number) > 0


async def test_what_the_aggregator_holds_does_not_grow(tmp_path: Path) -> None:
    method = MethodSettings()
    declaration = build_strategy("lpsfed", method).declaration(method)
    course = Course()
    async with federation(tmp_path / "state", declaration, CLIENTS, method=method) as running:
        await running.start(RunIn(rounds=ROUNDS, clients=CLIENTS))
        began = time.perf_counter()
        for number in range(1, ROUNDS + 1):
            async with anyio.create_task_group() as tasks:
                for seed, client in enumerate(running.clients):
                    tasks.start_soon(lived, client, seed, number)
            course.note(running)
        course.seconds = time.perf_counter() - began
        phase = await running.phase()
    told(course)
    assert phase == "finished"
    settled = course.resident[ROUNDS // WARM_UP :]
    added, noise = trend(settled)
    assert added <= max(ALLOWED, NOISE * noise), f"memory grows: {added:.2f} MiB over {len(settled)} rounds"
    early, late = course.descriptors[: ROUNDS // WARM_UP], course.descriptors[-ROUNDS // WARM_UP :]
    assert max(late) <= max(early) + FEW_DESCRIPTORS


def told(course: Course) -> None:
    settled = course.resident[ROUNDS // WARM_UP :]
    added, noise = trend(settled)
    uploads, seconds = CLIENTS * ROUNDS, course.seconds
    print(  # noqa: T201 - the figures are what a soak is run for
        f"\n{CLIENTS} clients x {ROUNDS} rounds in {seconds:.0f} s: {uploads / seconds:.1f} updates/s, "
        f"{2 * uploads / seconds:.1f} signed calls/s, {seconds / ROUNDS:.2f} s a round\n"
        f"resident: {course.resident[0]:.1f} MiB after round 1, {settled[0]:.1f} after the warm-up, "
        f"{settled[-1]:.1f} at the end, most {max(course.resident):.1f}; trend {added:+.2f} MiB over {len(settled)} "
        f"rounds, deviation {noise:.2f}\n"
        f"file descriptors: {course.descriptors[0]} after round 1, {course.descriptors[-1]} at the end, "
        f"most {max(course.descriptors)}"
    )
