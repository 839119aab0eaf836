"""Settings -> the HTTP service of one silo, with its agent in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import httpx
from fastapi import FastAPI

from client_service import asking, routes
from client_service.callers import CallerKeys
from client_service.feedback import routes as feedback
from client_service.logs import LOGGER
from client_service.pages import routes as pages
from client_service.replicas.service import Replica
from client_service.service import ClientService
from client_service.settings import ClientSettings
from shared.web import problems, reference
from shared.web.access import Addressed, Limited, Observed, Timed
from shared.web.built import build
from shared.web.calling import Calling
from shared.web.head_requests import HeadAsGet
from shared.web.pace import Buckets, Paced
from shared.web.targets import DecodedTargets
from shared.web.tls import Identity


def create_app(
    settings: ClientSettings,
    outside: httpx.AsyncBaseTransport | None = None,
    turns: AbstractContextManager[object] | None = None,
) -> FastAPI:
    """The service. Its lifespan reads the shard and starts the agent; `app.state.service` is its inside.

    `outside`: what carries requests to the aggregator, beneath the gate; by default the network. `turns`: held
    while the silo computes, where several share a process.
    """
    app = FastAPI(title="LPSFed client", lifespan=_lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    identities = app.state.identities = settings.identities()
    service = app.state.service = ClientService(
        settings, outside or _network(settings, identities), turns or nullcontext()
    )
    for router in (*asking.routers, feedback.router, routes.silo, routes.inside):
        app.include_router(router)
    pages.install(app, service)
    reference.install(app)
    return _finish(app, settings)


def create_replica(settings: ClientSettings) -> FastAPI:
    """What applications ask, and health and metrics, from the model that another process of this client keeps."""
    app = FastAPI(
        title="LPSFed client, a replica",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.identities = settings.identities()
    app.state.service = Replica(settings)
    for router in (*asking.routers, routes.inside):
        app.include_router(router)
    return _finish(app, settings)


def _finish(app: FastAPI, settings: ClientSettings) -> FastAPI:
    """Whom it answers, in which words it refuses, and what it counts and limits."""
    keys, service = CallerKeys.of(settings), app.state.service
    app.state.keys = keys
    service.metrics.watch(app.state.identities)
    problems.install(app)
    build(app)
    app.add_middleware(HeadAsGet)
    app.add_middleware(DecodedTargets)
    app.add_middleware(Limited)
    app.add_middleware(Timed)
    app.add_middleware(Paced, buckets=Buckets(settings.pace), who=keys.who)
    app.add_middleware(Addressed, allowed=settings.allowed_hosts)
    app.add_middleware(Observed, requests=service.metrics.requests, logger=LOGGER, callers_ids=True)
    return app


def _network(settings: ClientSettings, identities: dict[str, Identity]) -> httpx.AsyncBaseTransport:
    """The way to the aggregator. The certificate that is shown there, where there is one, joins `identities`."""
    calling = Calling(settings.aggregator_authority, settings.tls_client_certificate, settings.tls_client_key)
    identities.update(calling.identities)
    return httpx.AsyncHTTPTransport(verify=calling.context)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.service.running():
        yield
