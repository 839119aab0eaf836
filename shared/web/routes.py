"""The order in which every route of both services looks at a request before it answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from shared.web.content_types import require_content_type
from shared.web.segments import BySegments
from shared.web.undeclared import require_declared

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class DeclaredRoute(BySegments):
    """A route that refuses what it has not declared: a query, a body, or a body of another kind."""

    def get_route_handler(self) -> Handler:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            await self.admit(request)
            await require_declared(request)
            await require_content_type(request)
            if self.body_field is not None:
                await self.read_body(request)
            return await answer(request)

        return handle

    async def admit(self, request: Request) -> None:
        """Whoever may call, which here is anybody; an error of the tree for others, of whom nothing more is read."""

    async def read_body(self, request: Request) -> None:
        """Read a body of JSON or of a form as far as the route lets it be long; else the framework reads it."""
