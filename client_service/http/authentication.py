"""A request -> let through where its key is the one that the route asks for: the application's, or the operator's.

A route's key is asked for before anything of the request's body is read; then what no route has declared is refused.
At the end is what the routes of all files have in common: the service behind them, and how they answer.
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
from shared.web.connection_limits import vouch
from shared.web.credentials import OPERATOR, bearer, operator_secret, same
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
    """The key of each role; None where whoever calls may have it, on loopback or in a demo."""

    application: str | None = field(default=None, repr=False)
    operator: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: KeySettings) -> CallerKeys:
        return cls(settings.key("application_key"), settings.key("operator_key"))

    def admit(self, role: Role, method: str, header: str | None) -> None:
        """AuthenticationError for no key of this silo, ForbiddenError for the other role's."""
        if self._key_of(role) is None:
            return
        # A browser sends its password by itself, even where another site made it call: a password may look, not act.
        looks = role == "operator" and method == "GET"
        holder = self.holder(operator_secret(header) if looks else bearer(header))
        if holder is None:
            raise AuthenticationError(f"expected the {role}'s key")
        if holder != role:
            raise ForbiddenError(f"expected the {role}'s key, got the {holder}'s")

    def asks(self, role: Role) -> bool:
        """Does a role have a key at all?"""
        return self._key_of(role) is not None

    def holder(self, secret: str) -> Role | None:
        """Whose key this is; None where it is nobody's."""
        roles: tuple[Role, ...] = ("application", "operator")
        held = [role for role in roles if (key := self._key_of(role)) is not None and same(secret, key)]
        return held[0] if held else None

    def rate_limit_key(self, scope: Scope) -> str:
        """Who a request is counted for: the holder of a key, or else an address."""
        try:
            holder = self.holder(operator_secret(Headers(scope=scope).get("authorization")))
        except AuthenticationError:
            holder = None
        return address_key(scope) if holder is None else f"the {holder}"

    def _key_of(self, role: Role) -> str | None:
        return self.application if role == "application" else self.operator


class KeyedRoute(DeclaredRoute):
    """A route for the holder of one key."""

    role: ClassVar[Role]

    async def admit(self, request: Request) -> None:
        keys: CallerKeys = request.app.state.keys
        keys.admit(self.role, request.method, request.headers.get("authorization"))
        if keys.asks(self.role):
            vouch(request.scope)


class ApplicationRoute(KeyedRoute):
    """Answers about people, for the silo's own applications."""

    role = "application"


class OperatorRoute(KeyedRoute):
    """What the silo does and knows of itself, for whoever runs it."""

    role = "operator"


class OperatorPageRoute(OperatorRoute):
    """As `OperatorRoute`; the browser is told to ask for name and key where they are missing or wrong."""

    async def admit(self, request: Request) -> None:
        try:
            await super().admit(request)
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
    """Answers are about people, or of this moment: nobody on the way may keep them."""
    response.headers["Cache-Control"] = "no-store"


SHOWN = Depends(HTTPBearer(auto_error=False))  # for /docs alone; who is calling is decided by the routes' classes
COMMON: dict[str, Any] = {"prefix": "/v1", "responses": PROBLEMS, "dependencies": [Depends(forbid_storing), SHOWN]}


async def service(request: Request) -> AnswerService:
    found: AnswerService = request.app.state.service
    return found


Service = Annotated[AnswerService, Depends(service)]
