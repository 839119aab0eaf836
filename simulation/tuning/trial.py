"""An experiment -> the primary measure on validation items, round by round, so that a poor run can be ended early."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import anyio

from client_service.learning.quality import PRIMARY
from client_service.schemas import QualityOut
from simulation.experiment import Experiment
from simulation.federation import Federation, Progress, conduct
from simulation.patience import impatient
from simulation.run import in_process

POLL_SECONDS = 0.1

Told = Callable[[int, float], None]
"""(round, client mean of the primary measure on validation items) -> None; whatever it raises ends the run."""
Curves = dict[str, dict[int, float]]
"""client -> round -> the primary measure on validation items; round 0 is the start."""


def validate(experiment: Experiment, told: Told) -> float:
    """Run in this process. The client mean of each client's best round: what it would serve.

    `told` hears of each round once, in order. FederationError when the run fails, or a client cannot go on.
    """
    curves = anyio.run(_followed, experiment, told)
    return math.fsum(max(curve.values()) for curve in curves.values()) / len(curves)


async def _followed(experiment: Experiment, told: Told) -> Curves:
    async with in_process(experiment) as federation:
        run = asyncio.create_task(conduct(federation, experiment.request(), impatient(_unseen)))
        try:
            return await _until_done(federation, run, told)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


async def _until_done(federation: Federation, run: asyncio.Task[object], told: Told) -> Curves:
    heard = 0
    while True:
        done, _ = await asyncio.wait({run}, timeout=POLL_SECONDS)
        for finished in done:
            finished.result()
        curves = await _curves(federation)
        complete = set.intersection(*(set(curve) for curve in curves.values()))
        for number in sorted(complete - set(range(heard + 1))):
            told(number, math.fsum(curve[number] for curve in curves.values()) / len(curves))
            heard = number
        if done:
            return curves


async def _curves(federation: Federation) -> Curves:
    """As the silos' own APIs show them."""
    answers = {name: await http.get("/v1/quality") for name, http in federation.clients.items()}
    found = {name: QualityOut.model_validate_json(answer.content) for name, answer in answers.items()}
    return {name: {entry.round: entry.values[PRIMARY] for entry in quality.rounds} for name, quality in found.items()}


def _unseen(progress: Progress) -> None:
    """The search has a bar of its own."""
    del progress
