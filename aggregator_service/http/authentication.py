"""Authentication of clients by signature and of the operator by token."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, Response
from fastapi.routing import APIRoute

from aggregator_service.coordinator import Coordinator
from aggregator_service.http.direct_calls import DirectCall, Values
from shared.errors import AuthenticationError, ForbiddenError
from shared.protocol.lengths import add_room, longest_join, longest_message
from shared.protocol.secure.messages import ClientMessage
from shared.protocol.signing.requests import HEADERS
from shared.web.connection_limits import mark_trusted
from shared.web.credentials import OPERATOR, is_same_secret, read_bearer_secret, read_operator_secret
from shared.web.request_bodies import read_body
from shared.web.routes import DeclaredRoute, PlainHandler

CHALLENGE = {"WWW-Authenticate": 'Basic realm="LPSFed aggregator"'}  # makes a browser ask for name and password


# Dependencies are async because the framework sends each plain function through a worker thread.
async def find_coordinator(request: Request) -> Coordinator:
    """Returns the coordinator behind the application."""
    found: Coordinator = request.app.state.coordinator
    return found


Service = Annotated[Coordinator, Depends(find_coordinator)]


async def read_signer(request: Request) -> str:
    """Returns the client that signed this request, as `SignatureMiddleware` found it."""
    name: str | None = getattr(request.state, "client", None)
    if name is None:
        raise AuthenticationError(f"expected a request that its client has signed, by the headers {', '.join(HEADERS)}")
    return name


Signer = Annotated[str, Depends(read_signer)]


async def require_member(service: Service, name: Signer) -> str:
    """Returns the signing client if it has joined."""
    await service.federation.require_joined(name)
    return name


Caller = Annotated[str, Depends(require_member)]


class SignedRoute(DeclaredRoute):
    """Route for clients, which reads no body of an unknown caller.

    Of a known client it reads no more bytes than its message can have.
    """

    def plain_handler(self) -> PlainHandler | None:
        call = DirectCall.of(self)
        if call is None:
            return None

        def handle(request: Request) -> Coroutine[Any, Any, Response | None] | None:
            values = call.read_values(request.scope)
            if values is None:
                return None
            return call.answer(request, values) if call.message is None else self._answer_message(call, request, values)

        return handle

    async def _answer_message(self, call: DirectCall, request: Request, values: Values) -> Response | None:
        """Answers a request with a message; None if the framework is to read it.

        The body is read then all the same.
        """
        await self.read_body(request)
        return await call.answer(request, values) if call.read_message(values, await request.body()) else None

    async def authorise(self, request: Request) -> None:
        await read_signer(request)

    async def read_body(self, request: Request) -> None:  # the framework hides errors of its own reading
        await read_body(request, await body_limit(request, await find_coordinator(request)))


async def require_operator(request: Request, service: Service) -> None:
    """Lets only the operator pass.

    Raises ForbiddenError for a client, AuthenticationError for any other caller.
    """
    if hasattr(request.state, "client"):
        raise ForbiddenError("expected the operator's token, got a client's signature")
    header = request.headers.get("authorization")
    # A browser sends its password also for calls of other sites: a password may read, not change.
    _require_token(
        request, service, read_operator_secret(header) if request.method == "GET" else read_bearer_secret(header)
    )


def _require_token(request: Request, service: Coordinator, secret: str) -> None:
    if not is_same_secret(secret, service.operator_token):
        raise AuthenticationError("expected the operator's token")
    mark_trusted(request.scope)


class TokenRoute(DeclaredRoute):
    """Route for the operator, which reads no body of other callers."""

    async def authorise(self, request: Request) -> None:
        await require_operator(request, await find_coordinator(request))

    async def read_body(self, request: Request) -> None:
        await read_body(request, LONGEST_BY_OPERATOR)


async def require_operator_login(request: Request, service: Service) -> None:
    """Lets only the operator see a page; a browser asks for name and token otherwise."""
    try:
        await require_operator(request, service)
    except AuthenticationError:
        raise _request_login() from None


async def require_operator_form(request: Request, service: Service) -> None:
    """Lets only the operator send a form of the page.

    The password alone is not enough: the form must also carry the guard that the page has put into it.
    """
    try:
        if hasattr(request.state, "client"):
            raise ForbiddenError("expected the operator's password, got a client's signature")
        _require_token(request, service, read_operator_secret(request.headers.get("authorization")))
    except AuthenticationError:
        raise _request_login() from None


def _request_login() -> HTTPException:
    detail = f"expected the user {OPERATOR!r} with the operator's token as password"
    return HTTPException(401, detail, CHALLENGE)


LONGEST_BY_OPERATOR = 64 << 10  # a run's settings, a reason


async def body_limit(request: Request, service: Coordinator) -> int:
    """Returns the largest JSON body, in bytes, that this caller may send here.

    Raises AuthenticationError, ForbiddenError or NotFoundError for a caller that may send none.
    """
    kind = _body_type(request)
    if issubclass(kind, ClientMessage):
        return add_room(longest_message(kind, await _count_clients(request, service)))
    return longest_join(service.declaration)


def _body_type(request: Request) -> type[object]:
    """Returns the type that the route declares as its body."""
    route: APIRoute = request.scope["route"]
    assert route.body_field is not None
    kind: type[object] = route.body_field.field_info.annotation  # type: ignore[assignment]
    return kind


async def _count_clients(request: Request, service: Coordinator) -> int:
    """Counts the clients of the path's run; the caller must be one of them."""
    name, place = request.state.client, request.path_params
    await service.federation.require_joined(name)
    if place["client"] != name:
        raise ForbiddenError(f"expected your own name, {name!r}, got {place['client']!r}")
    return len((await service.federation.round_loop.find_run(place["run"])).clients)
