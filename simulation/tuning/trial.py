"""An experiment -> the primary measure on validation items, round by round, so that a poor run can be ended early."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import anyio

from client_service.federation.messages import QualityOut
from client_service.tasks import task_named
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation, conduct_run, ignore_progress
from simulation.experiments.in_process import fail_when_stuck, open_federation

POLL_SECONDS = 0.1

ObserveRound = Callable[[int, float], None]
"""(round, client mean of the primary measure on validation items) -> None; whatever it raises ends the run."""
Curves = dict[str, dict[int, float]]
"""client -> round -> the primary measure on validation items; round 0 is the start."""


def validate_experiment(experiment: Experiment, observe: ObserveRound) -> float:
    """Run in this process. The client mean of each client's best round: what it would serve.

    `observe` hears of each round once, in order. FederationError when the run fails, or a client cannot go on.
    """
    curves = anyio.run(_follow_run, experiment, observe)
    return math.fsum(max(curve.values()) for curve in curves.values()) / len(curves)


async def _follow_run(experiment: Experiment, observe: ObserveRound) -> Curves:
    primary = task_named(experiment.task).primary
    async with open_federation(experiment) as federation:
        run = asyncio.create_task(conduct_run(federation, experiment.run_request(), fail_when_stuck(ignore_progress)))
        try:
            return await _observe_rounds(federation, run, primary, observe)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


async def _observe_rounds(
    federation: Federation, run: asyncio.Task[object], primary: str, observe: ObserveRound
) -> Curves:
    heard = 0
    while True:
        done, _ = await asyncio.wait({run}, timeout=POLL_SECONDS)
        for finished in done:
            finished.result()
        curves = await _fetch_curves(federation, primary)
        complete = set.intersection(*(set(curve) for curve in curves.values()))
        for number in sorted(complete - set(range(heard + 1))):
            observe(number, math.fsum(curve[number] for curve in curves.values()) / len(curves))
            heard = number
        if done:
            return curves


async def _fetch_curves(federation: Federation, primary: str) -> Curves:
    """As the silos' own APIs show them."""
    answers = {name: await http.get("/v1/quality") for name, http in federation.clients.items()}
    qualities = {name: QualityOut.model_validate_json(answer.content) for name, answer in answers.items()}
    return {
        name: {entry.round: entry.values[primary] for entry in quality.rounds} for name, quality in qualities.items()
    }
