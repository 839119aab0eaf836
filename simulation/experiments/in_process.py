"""Runs clients and aggregator in one process, over ASGI transports."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore

import anyio
import httpx
from fastapi import FastAPI

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from shared.errors import FederationError
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation, Observe, Outcome, Progress, admit_late_clients, execute_run

STUCK_SECONDS = 5.0  # a client that shows the same problem for so long will not get over it by itself


def fail_when_stuck(observe: Observe, clock: Callable[[], float] = time.monotonic) -> Observe:
    """Wraps an observer so that a client with a lasting problem ends the run.

    Raises FederationError for a client with one problem for STUCK_SECONDS.
    """
    since: dict[tuple[str, str], float] = {}

    def observe_and_check(seen: Progress) -> None:
        observe(seen)
        problems = {(name, status.problem) for name, status in seen.statuses.items() if status.problem}
        for gone in since.keys() - problems:
            del since[gone]
        for name, problem in sorted(problems):
            if clock() - since.setdefault((name, problem), clock()) >= STUCK_SECONDS:
                raise FederationError(f"{name} cannot continue: {problem}")

    return observe_and_check


AGGREGATOR = "http://127.0.0.1"  # nothing listens there: requests go to the app in this process


@asynccontextmanager
async def open_federation(experiment: Experiment) -> AsyncIterator[Federation]:
    """Opens the federation inside this event loop."""
    async with AsyncExitStack() as stack:
        aggregator = create_aggregator(experiment.make_aggregator_settings())
        operator = await _enter_app(stack, aggregator, token=experiment.token)
        turns = BoundedSemaphore(os.cpu_count() or 1)

        async def open_clients(shards: Sequence[Path]) -> dict[str, httpx.AsyncClient]:
            found = {}
            for shard in shards:
                settings = experiment.make_client_settings(shard, aggregator_url=AGGREGATOR)
                app = create_client(settings, outside=httpx.ASGITransport(aggregator), turns=turns)
                found[shard.name] = await _enter_app(stack, app, token=experiment.operator_key)
            return found

        clients = await open_clients(experiment.initial_shards)
        yield Federation(operator, clients, partial(open_clients, experiment.late))


async def _enter_app(stack: AsyncExitStack, app: FastAPI, *, token: str) -> httpx.AsyncClient:
    await stack.enter_async_context(app.router.lifespan_context(app))
    headers = {"Authorization": f"Bearer {token}"}
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=AGGREGATOR, headers=headers)
    return await stack.enter_async_context(http)


def simulate_experiment(experiment: Experiment, observe: Observe) -> Outcome:
    """Runs the experiment in this process, or resumes it after its last stored round."""

    async def conduct_in_process() -> Outcome:
        async with open_federation(experiment) as federation:
            watched = fail_when_stuck(observe)
            held = await execute_run(federation, experiment.run_request(), watched, resume=True)
            return held if not experiment.late else await admit_late_clients(federation, held, watched)

    return anyio.run(conduct_in_process)
