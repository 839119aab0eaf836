"""Settings -> the HTTP service of one silo, with its agent in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import httpx
from fastapi import FastAPI

from client_service.http import event_routes, operator_routes, recommendation_routes
from client_service.http.authentication import OTHER_TASK, CallerKeys
from client_service.http.cross_origin import CrossOrigin
from client_service.http.fast_path import FastPath
from client_service.http.server import Server
from client_service.http.service import ClientService
from client_service.http.trainer_proxy import BehindServer
from client_service.pages import routes as pages
from client_service.runtime.logs import LOGGER
from client_service.runtime.trainer_process import ChildProcess
from client_service.settings import ClientSettings
from shared.web import openapi, problems
from shared.web.calling import Calling, ProxyTransport
from shared.web.middleware import (
    AccessLog,
    BodyLimit,
    BodyTimeout,
    Buckets,
    FrontedApp,
    HeldBytes,
    HostCheck,
    RateLimit,
)
from shared.web.openapi import new_app
from shared.web.routes import DecodedTargets, HeadAsGet, build
from shared.web.tls import Identity

ABOUT = """
One silo of a federation. Its applications ask it for recommendations and tell it what users did; its operator looks
after it. Nothing that is asked or answered here leaves the silo.

Every call under `/v1` shows a key, as `Authorization: Bearer KEY`: `recommendations`, `catalogue` and `feedback` the
application's, `silo` the operator's. A body is `application/json`. Whatever is not declared here is refused. Every
refusal is a problem document (RFC 9457), whose `code` is stable.

```sh
curl "http://127.0.0.1:8801/v1/users/4711/recommendations?k=5" -H "Authorization: Bearer $KEY"
```

```python
from lpsfed import Client

with Client("http://127.0.0.1:8801", key) as silo:
    print(silo.recommend("4711", k=5).items)
```

```js
const headers = {Authorization: `Bearer ${key}`};
const answer = await fetch("http://127.0.0.1:8801/v1/users/4711/recommendations?k=5", {headers});
console.log((await answer.json()).items);
```

Each call has lines like these beside it, in `x-codeSamples`.
"""


def create_app(
    settings: ClientSettings,
    outside: httpx.AsyncBaseTransport | None = None,
    turns: AbstractContextManager[object] | None = None,
    *,
    behind_server: bool = False,
) -> FastAPI:
    """The service. Its lifespan reads the shard and starts the agent; `app.state.service` is its inside.

    `outside`: what carries requests to the aggregator, beneath the gate; by default the network. `turns`: held
    while the silo computes, where several share a process. `behind_server`: a server has the port, and checks hosts,
    counts, limits and logs requests.
    """
    app = new_app("LPSFed", ABOUT, "http://127.0.0.1:8801", _lifespan)
    identities = app.state.identities = {} if behind_server else settings.identities()
    service = app.state.service = ClientService(
        settings, outside or _network(settings, identities), turns or nullcontext()
    )
    for router in (*recommendation_routes.routers, operator_routes.silo, operator_routes.inside):
        app.include_router(router)
    app.include_router(event_routes.router, responses=OTHER_TASK)
    pages.install(app, service)
    openapi.install(app)
    return _finish(app, settings, behind_server=behind_server)


def create_server(settings: ClientSettings, trainer: ChildProcess | None = None) -> FastAPI:
    """What applications ask and tell, health and metrics, from what the trainer keeps on the disk; all else is asked of
    the trainer beside it, where there is one."""
    app = FrontedApp(
        title="LPSFed client, its server",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.identities = settings.identities()
    settings = settings.model_copy(update={"device": "cpu"})
    service = app.state.service = Server(settings, trainer)
    for router in (*recommendation_routes.routers, event_routes.router, operator_routes.inside):
        app.include_router(router)
    if service.proxy is not None:
        app.router.default = service.proxy
    return _finish(app, settings)


def _finish(app: FrontedApp, settings: ClientSettings, *, behind_server: bool = False) -> FrontedApp:
    """Whom it answers, in which words it refuses, and what it counts and limits."""
    keys, service = CallerKeys.of(settings), app.state.service
    app.state.keys = keys
    buckets, held = Buckets(settings.pace), HeldBytes()
    service.metrics.watch(app.state.identities)
    problems.install(app)
    build(app)
    app.add_middleware(HeadAsGet)
    app.add_middleware(DecodedTargets)
    app.add_middleware(BodyLimit, held=held)
    app.add_middleware(BodyTimeout)
    if behind_server:
        app.add_middleware(BehindServer, requests=service.metrics.requests, logger=LOGGER, callers_ids=True)
        return app
    app.add_middleware(RateLimit, buckets=buckets, who=keys.rate_limit_key)
    app.add_middleware(HostCheck, allowed=settings.allowed_hosts)
    app.add_middleware(AccessLog, requests=service.metrics.requests, logger=LOGGER, callers_ids=True)
    app.put_in_front(
        FastPath,
        service=service,
        keys=keys,
        buckets=buckets,
        held=held,
        allowed_hosts=settings.allowed_hosts,
    )
    if settings.allowed_origins:
        app.put_in_front(CrossOrigin, origins=settings.allowed_origins, routes=app.routes)
    return app


def _network(settings: ClientSettings, identities: dict[str, Identity]) -> httpx.AsyncBaseTransport:
    """The way to the aggregator. The certificate that is shown there, where there is one, joins `identities`."""
    calling = Calling(settings.aggregator_authority, settings.tls_client_certificate, settings.tls_client_key)
    identities.update(calling.identities)
    proxy = settings.proxy()
    if proxy is not None:
        return ProxyTransport(calling.context, proxy)
    return httpx.AsyncHTTPTransport(verify=calling.context, trust_env=False)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.service.running():
        yield
