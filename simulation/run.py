"""N clients and the aggregator in one process: the very same services, joined by ASGI transports instead of sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import httpx
from fastapi import FastAPI

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from simulation.experiment import Experiment
from simulation.federation import Federation, Observe, Outcome, conduct
from simulation.patience import impatient

AGGREGATOR = "http://127.0.0.1"  # nothing listens there: what is asked goes to the app in this process


@asynccontextmanager
async def in_process(experiment: Experiment) -> AsyncIterator[Federation]:
    """The federation, running inside this event loop."""
    async with AsyncExitStack() as stack:
        aggregator = create_aggregator(experiment.aggregator())
        operator = await _entered(stack, aggregator, token=experiment.token)
        clients = {}
        for shard in experiment.shards:
            settings = experiment.client(shard, aggregator_url=AGGREGATOR)
            app = create_client(settings, outside=httpx.ASGITransport(aggregator))
            clients[shard.name] = await _entered(stack, app, token=experiment.operator_key)
        yield Federation(operator, clients)


async def _entered(stack: AsyncExitStack, app: FastAPI, *, token: str) -> httpx.AsyncClient:
    await stack.enter_async_context(app.router.lifespan_context(app))
    headers = {"Authorization": f"Bearer {token}"}
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=AGGREGATOR, headers=headers)
    return await stack.enter_async_context(http)


def simulate(experiment: Experiment, observe: Observe) -> Outcome:
    """Run the experiment in this process."""

    async def go() -> Outcome:
        async with in_process(experiment) as federation:
            return await conduct(federation, experiment.request(), impatient(observe))

    return anyio.run(go)
