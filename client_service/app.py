"""Builds the HTTP service of one silo, with its agent in the background."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext

import anyio
import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from client_service.federation.run_poll import make_transport
from client_service.http import event_routes, operator_routes, recommendation_routes
from client_service.http.authentication import CHALLENGE, OTHER_TASK, CallerKeys, KeyedRoute, OperatorPageRoute
from client_service.http.server_app import SWITCH_SECONDS, finish_app, inside, lifespan
from client_service.http.service import ClientService
from client_service.http.waiting_trainer import Handover, KeylessAnswers
from client_service.pages import routes as pages
from client_service.runtime.logs import LOGGER
from client_service.runtime.trainer_process import FAILED, HEALTH_SOCKET, WAITING, choose_socket, replace_trainer
from client_service.settings import ClientSettings
from shared.errors import AuthenticationError
from shared.files import remove_public_access, use_private_umask
from shared.web import openapi, problems
from shared.web.listening import Socket, duplicate_socket
from shared.web.logs import configure_logging
from shared.web.openapi import create_api
from shared.web.server import open_private_socket, run_server

AGENT_CHECK_SECONDS = 1.0  # between two checks that the agent still runs
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
    """Creates the service's app; its lifespan reads the shard and starts the agent.

    `app.state.service` is the `ClientService`.

    `outside`: transport of requests to the aggregator, beneath the gate; by default the network. `turns`: held while
    the silo computes, where several silos share a process. `behind_server`: a server process has the port; it checks
    hosts, counts, limits and logs requests.
    """
    app = create_api("LPSFed", ABOUT, "http://127.0.0.1:8801", lifespan)
    identities = app.state.identities = {} if behind_server else settings.identities()
    service = app.state.service = ClientService(
        settings, outside or make_transport(settings, identities), turns or nullcontext()
    )
    for router in (*recommendation_routes.routers, operator_routes.silo, inside):
        app.include_router(router)
    app.include_router(event_routes.router, responses=OTHER_TASK)
    pages.install_page(app, service)
    openapi.add_reference_routes(app)
    return finish_app(app, settings, behind_server=behind_server)


def serve_trainer(
    settings: ClientSettings, kept: int, server: int | None = None, handover: Handover | None = None
) -> int:
    """Runs a trainer, which answers its server at a socket, and returns its exit code.

    The socket is in the state directory. The trainer ends on SIGINT or SIGTERM, or once only a restart helps; one with
    nothing to do becomes one that waits (`waiting_trainer.py`). kept: descriptor of the settings. server: id of the
    process that has started this one. handover: of an earlier image of this process, which has waited. DataError or
    SettingsError: shard or state directory cannot be used.
    """
    configure_logging("client_service", settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    with use_private_umask():
        _close_to_others(settings)
        trainer = _Trainer(settings, kept, server, handover)
        anyio.run(trainer.serve)
        if (next_handover := trainer.next_handover) is not None:
            replace_trainer((WAITING,), next_handover.kept, next_handover, lambda: False)
    return FAILED if trainer.failed else 0


class _Trainer:
    """Trainer process. next_handover: state for the process that follows, once this one has ended."""

    def __init__(self, settings: ClientSettings, kept: int, server: int | None, handover: Handover | None) -> None:
        self._settings = settings.model_copy(update={"ready_file": None})  # the server writes it
        self._kept, self._server, self._handover = kept, server, handover
        self._sockets: tuple[int, ...] = ()  # descriptors of sockets
        self.failed = False
        self.next_handover: Handover | None = None

    async def serve(self) -> None:
        settings = self._settings
        app = create_app(settings, behind_server=True)
        LOGGER.info("starting_trainer", client=settings.name)
        service: ClientService = app.state.service
        service.server_process, service.handover = self._server, self._handover
        service.waits_when_idle = settings.trainer_idle_seconds > 0.0
        if self._handover is not None:
            service.metrics.restore_counts(self._handover.series)

        async def wait_until_idle() -> None:
            await service.idle.wait()

        signalled = await run_server(
            app,
            settings,
            identities=app.state.identities,
            on_shutdown=lambda: None,
            unready_reason=lambda: service.unready_reason,
            logger=LOGGER,
            listen=lambda _: self._listen(),
            drain=wait_until_idle,
            background=[self._end_with_agent(service)],
            log_warnings=False,  # the server tells them
        )
        if service.idle.is_set() and not signalled:
            found = service.make_handover(self._kept, *self._sockets)
            self.next_handover = found.model_copy(update={"keyless": _describe_keyless(app)})

    def _listen(self) -> list[Socket]:
        """Opens the sockets for requests and health checks, which the next process inherits."""
        if self._handover is not None:
            self._sockets = (self._handover.kept.listener, self._handover.kept.health)
        else:
            place = choose_socket(self._settings.state_directory)
            places = (place, place.with_name(HEALTH_SOCKET))
            self._sockets = tuple(open_private_socket(one).detach() for one in places)
        return [duplicate_socket(one) for one in self._sockets]

    async def _end_with_agent(self, service: ClientService) -> None:
        while service.live:
            await asyncio.sleep(AGENT_CHECK_SECONDS)
        self.failed = True
        os.kill(os.getpid(), signal.SIGTERM)


def _describe_keyless(app: FastAPI) -> KeylessAnswers | None:
    """Describes what each path answers without a key; None in a silo without keys."""
    keys: CallerKeys = app.state.keys
    if not keys.asks("operator"):
        return None
    kinds: dict[type[APIRoute], list[str]] = {OperatorPageRoute: [], KeyedRoute: [], APIRoute: []}
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute):
            next(paths for kind, paths in kinds.items() if isinstance(route, kind)).append(context.path_regex.pattern)
    refusal = problems.error_response(AuthenticationError("expected the operator's key")).body
    return KeylessAnswers(
        open=tuple(kinds[APIRoute]),
        pages=tuple(kinds[OperatorPageRoute]),
        challenge=CHALLENGE["WWW-Authenticate"],
        refusal=bytes(refusal).decode(),
    )


def _close_to_others(settings: ClientSettings) -> None:
    """Closes shard and state directory to other users, and warns of files that stay open.

    Either folder may be older than this client, or belong to another user.
    """
    for name, folder in (("shard", settings.shard), ("state_directory", settings.state_directory)):
        if (left := remove_public_access(folder)) is not None:
            what = (
                f"{name}: expected files for this user alone, others may read {left}: chmod 700 {folder}, by its owner"
            )
            LOGGER.warning("caution", what=what)
