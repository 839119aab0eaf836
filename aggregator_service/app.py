"""Settings -> the HTTP service. The one place that knows which error is which status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from aggregator_service import routes
from aggregator_service.access import ForbiddenError
from aggregator_service.coordinator import Coordinator
from aggregator_service.middleware import Limited, Observed
from aggregator_service.problems import invalid, problem, refused, unexpected
from aggregator_service.routes import MediaTypeError
from aggregator_service.settings import AggregatorSettings
from shared.errors import (
    AuthenticationError,
    ConflictError,
    FederationError,
    NotFoundError,
    ProtocolError,
    SettingsError,
    TooLargeError,
    UnavailableError,
)

STATUS: dict[type[FederationError], int] = {
    AuthenticationError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    TooLargeError: 413,
    MediaTypeError: 415,
    ProtocolError: 422,
    SettingsError: 422,
    UnavailableError: 503,
    FederationError: 500,
}
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}


def create_app(settings: AggregatorSettings) -> FastAPI:
    """The service. It opens its state directory when its lifespan begins; `app.state.coordinator` is its inside."""
    app = FastAPI(title="LPSFed aggregator", lifespan=_lifespan)
    coordinator = app.state.coordinator = Coordinator(settings)
    for router in (routes.clients, routes.runs, routes.inside):
        app.include_router(router)
    app.add_exception_handler(FederationError, _federation)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(ClientDisconnect, _cut_off)
    app.add_exception_handler(Exception, unexpected)
    app.add_middleware(Limited)
    app.add_middleware(Observed, metrics=coordinator.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.coordinator.running():
        yield


async def _federation(request: Request, error: Exception) -> Response:
    assert isinstance(error, FederationError)
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    if request.method == "PUT":
        request.app.state.coordinator.metrics.uploads.labels("refused").inc()
    return problem(status, code=error.code, detail=str(error), headers=HEADERS.get(status))


async def _cut_off(request: Request, error: Exception) -> Response:
    """The caller went away in the middle of its body; nobody is left to read this."""
    del request, error
    return problem(400, code=ProtocolError.code, detail="expected the whole body, the connection was cut")
