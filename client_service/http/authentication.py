"""Authentication: each route asks for the application's or the operator's key.

The key is checked before the body is read; then undeclared parameters are refused. At the end of this module is what
the routes of all files share: the service behind them, and the headers of their answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

from fastapi import Depends, HTTPException, Request, Response
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import Scope

from client_service.http.answer_service import AnswerService
from shared.errors import AuthenticationError, ForbiddenError
from shared.protocol.problem import ProblemOut
from shared.web.connection_limits import mark_trusted
from shared.web.credentials import OPERATOR, is_same_secret, read_bearer_secret, read_operator_secret
from shared.web.middleware import address_key
from shared.web.problems import MARK, describe_refusal
from shared.web.routes import DeclaredRoute

Role = Literal["application", "operator"]
CHALLENGE = {"WWW-Authenticate": 'Basic realm="LPSFed client"'}  # makes a browser ask for name and password


class KeySettings(Protocol):
    """Settings of a client or of its server, with the keys of callers."""

    def key(self, name: str) -> str | None: ...


@dataclass(frozen=True)
class CallerKeys:
    """Keys of the two roles; None if a role needs no key.

    A silo needs no keys on loopback, or in a demo.
    """

    application: str | None = field(default=None, repr=False)
    operator: str | None = field(default=None, repr=False)

    @classmethod
    def from_settings(cls, settings: KeySettings) -> CallerKeys:
        return cls(settings.key("application_key"), settings.key("operator_key"))

    def admit(self, role: Role, method: str, header: str | None) -> None:
        """Checks the key in a request's header.

        Raises AuthenticationError without a key of this silo, ForbiddenError for the other role's key.
        """
        if self._key_of(role) is None:
            return
        # A browser sends a stored password also with calls that another site makes it send: it may only read.
        only_reads = role == "operator" and method == "GET"
        holder = self.holder(read_operator_secret(header) if only_reads else read_bearer_secret(header))
        if holder is None:
            raise AuthenticationError(f"expected the {role}'s key")
        if holder != role:
            raise ForbiddenError(f"expected the {role}'s key, got the {holder}'s")

    def asks(self, role: Role) -> bool:
        """Tells whether a role has a key."""
        return self._key_of(role) is not None

    def holder(self, secret: str) -> Role | None:
        """Returns the role whose key this is; None for an unknown key."""
        roles: tuple[Role, ...] = ("application", "operator")
        held = [role for role in roles if (key := self._key_of(role)) is not None and is_same_secret(secret, key)]
        return held[0] if held else None

    def rate_limit_key(self, scope: Scope) -> str:
        """Returns the name that a request counts for: its key's role, or its address."""
        try:
            holder = self.holder(read_operator_secret(Headers(scope=scope).get("authorization")))
        except AuthenticationError:
            holder = None
        return address_key(scope) if holder is None else f"the {holder}"

    def _key_of(self, role: Role) -> str | None:
        return self.application if role == "application" else self.operator


class KeyedRoute(DeclaredRoute):
    """A route for the holder of one key."""

    role: ClassVar[Role]

    async def authorise(self, request: Request) -> None:
        keys: CallerKeys = request.app.state.keys
        keys.admit(self.role, request.method, request.headers.get("authorization"))
        if keys.asks(self.role):
            mark_trusted(request.scope)


class ApplicationRoute(KeyedRoute):
    """Route that needs the application's key."""

    role = "application"


class OperatorRoute(KeyedRoute):
    """Route that needs the operator's key."""

    role = "operator"


class OperatorPageRoute(OperatorRoute):
    """Operator's route at which a browser asks for name and key."""

    async def authorise(self, request: Request) -> None:
        try:
            await super().authorise(request)
        except ForbiddenError:
            raise
        except AuthenticationError:
            raise HTTPException(401, f"expected the user {OPERATOR!r} with the operator's key", CHALLENGE) from None


Responses = dict[int | str, dict[str, Any]]
PROBLEMS: Responses = {MARK: {"model": ProblemOut, "description": "RFC 9457 problem document"}}
OTHER_TASK: Responses = {
    409: {"model": ProblemOut, "description": describe_refusal(409, "as from a silo whose task has no such answer")}
}


# Dependencies are async because the framework sends each plain function through a worker thread.
async def forbid_storing(response: Response) -> None:
    """Forbids caches to store an answer.

    Answers are about people, or only true at this moment.
    """
    response.headers["Cache-Control"] = "no-store"


SHOWN = Depends(HTTPBearer(auto_error=False))  # for /docs alone; the routes' classes check the keys
COMMON: dict[str, Any] = {"prefix": "/v1", "responses": PROBLEMS, "dependencies": [Depends(forbid_storing), SHOWN]}


async def service(request: Request) -> AnswerService:
    found: AnswerService = request.app.state.service
    return found


Service = Annotated[AnswerService, Depends(service)]
