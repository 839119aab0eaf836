"""A request -> the coordinator that answers it and whoever is calling: a client, or the operator."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException, Request

from aggregator_service.access import OPERATOR, bearer, operator_secret, same
from aggregator_service.coordinator import Coordinator
from shared.errors import AuthenticationError, ForbiddenError

CHALLENGE = {"WWW-Authenticate": 'Basic realm="LPSFed aggregator"'}  # makes a browser ask for name and password


# Dependencies are async because the framework sends each plain function through a worker thread.
async def coordinator(request: Request) -> Coordinator:
    """The inside of the app that was asked."""
    found: Coordinator = request.app.state.coordinator
    return found


Service = Annotated[Coordinator, Depends(coordinator)]


async def caller(request: Request, service: Service) -> str:
    """The joined client whose secret this is."""
    name = service.identify(bearer(request.headers.get("authorization")))
    request.state.client = name
    return name


Caller = Annotated[str, Depends(caller)]


async def operator(request: Request, service: Service) -> None:
    """Nobody but the operator; ForbiddenError for a client, AuthenticationError for anybody else."""
    header = request.headers.get("authorization")
    # A browser sends its password by itself, even where another site made it call: a password may look, not act.
    secret = operator_secret(header) if request.method == "GET" else bearer(header)
    if same(secret, service.operator_token):
        return
    try:
        await caller(request, service)
    except AuthenticationError:
        raise AuthenticationError("expected the operator's token") from None
    raise ForbiddenError("expected the operator's token, got a client's secret")


async def operator_at_browser(request: Request, service: Service) -> None:
    """As `operator`, for pages: the browser is told to ask for name and token where they are missing or wrong."""
    try:
        await operator(request, service)
    except AuthenticationError:
        detail = f"expected the user {OPERATOR!r} with the operator's token as password"
        raise HTTPException(401, detail, CHALLENGE) from None
