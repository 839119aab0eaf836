"""Settings -> the HTTP service of one silo, with its agent in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from client_service import routes
from client_service.logs import LOGGER
from client_service.pages import routes as pages
from client_service.service import ClientService
from client_service.settings import ClientSettings
from shared.web import problems, reference
from shared.web.access import Addressed, Limited, Observed


def create_app(settings: ClientSettings, outside: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The service. Its lifespan reads the shard and starts the agent; `app.state.service` is its inside.

    `outside`: what carries requests to the aggregator, beneath the gate; by default the network.
    """
    app = FastAPI(title="LPSFed client", lifespan=_lifespan, docs_url=None, redoc_url=None)
    service = app.state.service = ClientService(settings, outside or httpx.AsyncHTTPTransport())
    for router in (routes.recommendations, routes.silo, routes.inside):
        app.include_router(router)
    pages.install(app, service)
    reference.install(app)
    problems.install(app)
    app.add_middleware(Limited)
    app.add_middleware(Addressed, allowed=settings.allowed_hosts)
    app.add_middleware(Observed, requests=service.metrics.requests, logger=LOGGER)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.service.running():
        yield
