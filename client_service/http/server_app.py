"""Builds the app of a server: routes for applications, health and metrics.

The app of a whole client shares much of it. No import of this module loads torch, polars, scipy.stats or pandas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, Protocol

import anyio
from fastapi import APIRouter, FastAPI, Response

from client_service.http import event_routes, recommendation_routes
from client_service.http.authentication import PROBLEMS, CallerKeys, KeySettings, Service
from client_service.http.cross_origin import CrossOrigin
from client_service.http.fast_path import FastPath
from client_service.http.server import Server, ServerSettings
from client_service.http.trainer_proxy import TrainerAccessLog
from client_service.runtime.fork_server import ForkServer, Run, start_fork_server
from client_service.runtime.logs import LOGGER
from client_service.runtime.memory import keep_freed_memory
from client_service.runtime.trainer_process import (
    BAD_SETTINGS,
    FAILED,
    SERVER,
    SHORT_SLICE,
    TRAINER,
    ChildProcess,
    keep_settings,
    read_kept_settings,
    send_refusal,
    set_time_slice,
)
from shared.errors import FederationError, SettingsError, UnavailableError
from shared.files import use_private_umask
from shared.web import problems
from shared.web.health import LiveOut, ReadyOut
from shared.web.logs import configure_logging
from shared.web.middleware import (
    AccessLog,
    BodyLimit,
    BodyTimeout,
    DecodedTargets,
    FrontedApp,
    HeldBytes,
    HostCheck,
    RateLimit,
    TokenBuckets,
)
from shared.web.routes import DeclaredRoute, HeadAsGet, build_routes
from shared.web.server import open_shared_socket, run_server

SWITCH_SECONDS = 0.0005  # for which a thread may keep the interpreter from a request; Python's default: 0.005
inside = APIRouter(tags=["service"], route_class=DeclaredRoute, responses=PROBLEMS)


class AccessSettings(KeySettings, Protocol):
    """Settings that determine who may call and how often.

    They are keys, pace, hosts and origins.
    """

    @property
    def rate_limit(self) -> float: ...
    @property
    def allowed_hosts(self) -> tuple[str, ...]: ...
    @property
    def allowed_origins(self) -> tuple[str, ...]: ...


def create_server(settings: ServerSettings, trainer: ChildProcess | None = None) -> FrontedApp:
    """Builds the app of a server.

    The server answers applications, health and metrics from the trainer's compiled files. Every other request goes to
    the trainer beside the server, where there is one.
    """
    app = FrontedApp(
        title="LPSFed client, its server",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.identities = settings.identities()
    service = app.state.service = Server(settings, trainer)
    for router in (*recommendation_routes.routers, event_routes.router, inside):
        app.include_router(router)
    if settings.has_trainer:
        app.router.default = service.proxy
    return finish_app(app, settings)


def finish_app(app: FrontedApp, settings: AccessSettings, *, behind_server: bool = False) -> FrontedApp:
    """Adds the layers that check, limit, count and log requests, and that write refusals.

    behind_server: a server in front does the checking, limiting, counting and logging.
    """
    keys, service = CallerKeys.from_settings(settings), app.state.service
    app.state.keys = keys
    buckets, held = TokenBuckets(settings.rate_limit), HeldBytes()
    service.metrics.watch(app.state.identities)
    problems.install_error_handlers(app)
    build_routes(app)
    app.add_middleware(HeadAsGet)
    app.add_middleware(DecodedTargets)
    app.add_middleware(BodyLimit, held=held)
    app.add_middleware(BodyTimeout)
    if behind_server:
        app.add_middleware(
            TrainerAccessLog,
            requests=service.metrics.requests,
            logger=LOGGER,
            callers_ids=True,
            activity=service.activity,
        )
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


def serve_kept_settings(kept: int, trainer: int | None, begins: Callable[[], None] = lambda: None) -> int:
    """Runs a server until SIGINT or SIGTERM, and returns its exit code.

    The server listens at the silo's port. kept: descriptor of a `ServerSettings`. trainer: descriptor of the settings
    of a trainer to start beside the server. begins: called once this process may have threads. DataError or
    SettingsError: port, certificate or log cannot be used.
    """
    settings = ServerSettings(**read_kept_settings(kept))
    configure_logging("client_service", settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    set_time_slice(SHORT_SLICE)
    keep_freed_memory()
    with use_private_umask():
        forks = None if settings.workers == 1 else start_fork_server(partial(_prepare_worker, settings, trainer))
        begins()
        try:
            return anyio.run(_serve, settings, trainer, forks)
        finally:
            if forks is not None:
                forks.close()


def _prepare_worker(settings: ServerSettings, trainer: int | None) -> Run:
    """Builds the app of the further servers, in the process that they share memory with."""
    if trainer is not None:
        os.close(trainer)  # of the first server alone
    one = _worker_settings(settings)
    app = create_server(one)

    def run(refusal: int) -> int:
        try:
            anyio.run(_serve_app, app, one)
        except FederationError as error:
            if not send_refusal(refusal, error):
                sys.stderr.write(f"client: {error}\n")
            return BAD_SETTINGS if isinstance(error, SettingsError) else FAILED
        return 0

    return run


async def _serve(settings: ServerSettings, trainer_settings: int | None, forks: ForkServer | None) -> int:
    trainer = None if trainer_settings is None else ChildProcess("trainer", TRAINER, trainer_settings)
    workers = [
        ChildProcess("server", SERVER, keep_settings(_worker_settings(settings)), forks)
        for _ in range(settings.workers - 1)
    ]
    children = [*workers, *(() if trainer is None else (trainer,))]
    app = create_server(settings, trainer)

    def describe_start_delay() -> str | None:
        """Returns the reason why the parent is not notified yet that this process is ready.

        None: nothing delays the notice. The server waits for its first trainer. Where that trainer cannot start, the
        server ends, and its exit code says so.
        """
        return "the trainer is being started" if trainer is not None and not trainer.has_started else None

    await _serve_app(app, settings, children, describe_start_delay)
    if trainer is None or trainer.refused is None:
        return 0
    sys.stderr.write(f"client: {trainer.reason}\n")  # last of all: the parent process reads the last line
    return trainer.refused


async def _serve_app(
    app: FrontedApp,
    settings: ServerSettings,
    children: Sequence[ChildProcess] = (),
    starting: Callable[[], str | None] = lambda: None,
) -> None:
    """Runs a server's app and the processes beside it until SIGINT or SIGTERM."""
    service: Server = app.state.service

    def end_children() -> None:
        for child in children:
            child.end()

    LOGGER.info("starting", client=settings.name, host=settings.host, port=settings.port)
    await run_server(
        app,
        settings,
        identities=app.state.identities,
        on_shutdown=end_children,
        unready_reason=lambda: service.unready_reason,
        starting_reason=starting,
        logger=LOGGER,
        listen=(lambda settings: [open_shared_socket(settings)]) if settings.shares_port else None,
        background=[child.keep() for child in children],
    )


def _worker_settings(settings: ServerSettings) -> ServerSettings:
    """Makes the settings of the further servers at the port.

    They have no ready file: the first server's stands for all.
    """
    return settings.model_copy(update={"workers": 1, "ready_file": None, "start_warnings": ()})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Runs the app's service while the app runs."""
    async with app.state.service.running():
        yield


@inside.get("/health/live")
async def read_liveness(service: Service) -> LiveOut:
    """Tells that the process answers and its agent runs."""
    if not service.live:
        raise UnavailableError("the agent has failed: see the log, and restart the client")
    return LiveOut()


@inside.get("/health/ready", response_model_exclude_none=True)
async def read_readiness(service: Service) -> ReadyOut:
    """Tells that the service takes calls; 503 says why it does not."""
    if (unready_reason := service.unready_reason) is not None:
        raise UnavailableError(unready_reason)
    model: Literal["none yet", "serving"] = "none yet" if service.answers.served is None else "serving"
    return ReadyOut(model=model, trainer=service.trainer_status)


@inside.get("/metrics", response_class=Response, response_description="series in the text format of Prometheus")
async def read_metrics(service: Service) -> Response:
    """Returns counts and times, for Prometheus."""
    return Response(await service.describe_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")
