"""Settings -> the HTTP service of one silo, with its agent in the background."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext

import anyio
import httpx
from fastapi import FastAPI

from client_service.http import event_routes, operator_routes, recommendation_routes
from client_service.http.authentication import OTHER_TASK
from client_service.http.server_app import SWITCH_SECONDS, finish_app, inside, lifespan
from client_service.http.service import ClientService
from client_service.pages import routes as pages
from client_service.runtime.logs import LOGGER
from client_service.runtime.trainer_process import FAILED, choose_socket
from client_service.settings import ClientSettings
from shared.files import close_to_others, write_privately
from shared.web import openapi
from shared.web.calling import Calling, ProxyTransport
from shared.web.logs import configure
from shared.web.openapi import new_app
from shared.web.server import listen_privately, run_server
from shared.web.tls import Identity

LOOK_SECONDS = 1.0  # between two looks at whether the agent still runs
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
    while the silo computes, where several share a process. `behind_server`: a server has the port, and it checks
    hosts, counts, limits and logs requests.
    """
    app = new_app("LPSFed", ABOUT, "http://127.0.0.1:8801", lifespan)
    identities = app.state.identities = {} if behind_server else settings.identities()
    service = app.state.service = ClientService(
        settings, outside or _network(settings, identities), turns or nullcontext()
    )
    for router in (*recommendation_routes.routers, operator_routes.silo, inside):
        app.include_router(router)
    app.include_router(event_routes.router, responses=OTHER_TASK)
    pages.install(app, service)
    openapi.install(app)
    return finish_app(app, settings, behind_server=behind_server)


def _network(settings: ClientSettings, identities: dict[str, Identity]) -> httpx.AsyncBaseTransport:
    """The way to the aggregator. The certificate that is shown there, where there is one, joins `identities`."""
    calling = Calling(settings.aggregator_authority, settings.tls_client_certificate, settings.tls_client_key)
    identities.update(calling.identities)
    proxy = settings.proxy()
    if proxy is not None:
        return ProxyTransport(calling.context, proxy)
    return httpx.AsyncHTTPTransport(verify=calling.context, trust_env=False)


def serve_trainer(settings: ClientSettings, server: int | None = None) -> int:
    """Runs a trainer, which answers its server at a socket, and returns its exit code.

    The socket is in the state directory. The trainer ends on SIGINT or SIGTERM, or once only a restart helps. server:
    id of the process that has started this one. DataError or SettingsError: shard or state directory cannot be used.
    """
    configure("client_service", settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    with write_privately():
        _close_to_others(settings)
        return anyio.run(_serve_trainer, settings, server)


async def _serve_trainer(settings: ClientSettings, server: int | None) -> int:
    settings = settings.model_copy(update={"ready_file": None})  # the server writes it
    app = create_app(settings, behind_server=True)
    LOGGER.info("starting_trainer", client=settings.name)
    service: ClientService = app.state.service
    service.server_process = server
    failed = False

    async def end_with_agent() -> None:
        nonlocal failed
        while service.live:
            await asyncio.sleep(LOOK_SECONDS)
        failed = True
        os.kill(os.getpid(), signal.SIGTERM)

    await run_server(
        app,
        settings,
        identities=app.state.identities,
        wind_down=lambda: None,
        hindrance=lambda: service.hindrance,
        logger=LOGGER,
        listen=lambda _: listen_privately(choose_socket(settings.state_directory)),
        beside=[end_with_agent()],
        cautions=False,  # the server tells them
    )
    return FAILED if failed else 0


def _close_to_others(settings: ClientSettings) -> None:
    """Closes shard and state directory to other users, and warns of files that stay open.

    Either folder may be older than this client, or belong to another user.
    """
    for name, folder in (("shard", settings.shard), ("state_directory", settings.state_directory)):
        if (left := close_to_others(folder)) is not None:
            what = (
                f"{name}: expected files for this user alone, others may read {left}: chmod 700 {folder}, by its owner"
            )
            LOGGER.warning("caution", what=what)
