"""HTTP application of the aggregator."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from aggregator_service.coordinator import Coordinator
from aggregator_service.http import enrolment, routes
from aggregator_service.http.audit_log import ArrivalRecorder
from aggregator_service.http.request_heads import RequestHeads
from aggregator_service.http.routes import secure_routes
from aggregator_service.http.signatures import SignatureMiddleware, SignedAnswers
from aggregator_service.pages import routes as pages
from aggregator_service.process import LOGGER, Clock
from aggregator_service.settings import AggregatorSettings
from shared.web import openapi, problems
from shared.web.middleware import AccessLog, BodyTimeout, DecodedTargets, FrontedApp, RateLimit, TokenBuckets
from shared.web.openapi import create_api
from shared.web.routes import HeadAsGet, PlainPaths, build_routes

ABOUT = """
Aggregator of a federation. Its operator starts runs and watches them; the silos' clients send updates and fetch the
results. It holds no data of any silo.

The operator's calls carry the token, as `Authorization: Bearer TOKEN`. Clients sign their calls (RFC 9421, Ed25519),
each once, with a key whose public half is registered; the client service does it. A body is `application/json` unless
another type is given. Anything that is not declared here is refused. Every refusal is a problem document (RFC 9457),
whose `code` is stable.

```sh
curl http://127.0.0.1:8800/v1/runs -H "Authorization: Bearer $KEY"
```

```python
import httpx

print(httpx.get("http://127.0.0.1:8800/v1/runs", headers={"Authorization": f"Bearer {key}"}).json())
```

```js
const headers = {Authorization: `Bearer ${key}`};
console.log(await (await fetch("http://127.0.0.1:8800/v1/runs", {headers})).json());
```

Each call of the operator has lines like these beside it, in `x-codeSamples`.
"""


def create_app(settings: AggregatorSettings, *, clock: Clock = time.time) -> FrontedApp:
    """Creates the HTTP application; its state directory is opened when its lifespan begins.

    `app.state.coordinator` is the `Coordinator` behind it.
    """
    app = create_api("LPSFed aggregator", ABOUT, "http://127.0.0.1:8800", _lifespan)
    coordinator = app.state.coordinator = Coordinator(settings, clock=clock)
    identities = app.state.identities = settings.identities()
    coordinator.metrics.watch_identities(identities)
    masked = (secure_routes,) if settings.secure else ()
    for router in (routes.client_routes, *masked, routes.operator_routes, enrolment.router, routes.service_routes):
        app.include_router(router)
    pages.install(app)
    openapi.add_reference_routes(app)
    problems.install_error_handlers(app)
    build_routes(app)
    app.put_in_front(PlainPaths, routes=[one for router in (routes.client_routes, *masked) for one in router.routes])
    app.put_in_front(HeadAsGet)
    app.put_in_front(DecodedTargets)
    app.put_in_front(BodyTimeout, seconds=settings.longest_body_seconds)
    heads = RequestHeads(settings.trusted_proxies)
    app.put_in_front(SignatureMiddleware, coordinator=coordinator, heads=heads)
    app.put_in_front(ArrivalRecorder, coordinator=coordinator, heads=heads)
    app.put_in_front(RateLimit, buckets=TokenBuckets(settings.rate_limit))
    app.put_in_front(SignedAnswers, coordinator=coordinator)
    app.put_in_front(AccessLog, requests=coordinator.metrics.requests, logger=LOGGER)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.coordinator.running():
        yield
