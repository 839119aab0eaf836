"""A request for a known user's list -> its answer, where that is a look-up: the same answer in a fourth of the time.

The framework checks every parameter of a request against its declaration and every field of an answer against its
schema. Where the query is one of the plain forms below, both are known beforehand; whatever else comes goes its way.
"""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request, Response
from pydantic_core import to_json

from client_service.callers import ForApplications
from client_service.serving.questions import Listed
from shared.web.routes import Handler
from shared.web.undeclared import announces_body

PLAIN: Final = re.compile(rb"(?:k=(?P<k>[1-9][0-9]{0,2}|1000))?")
USUAL: Final = 20
LONGEST_ID: Final = 512
HEADERS: Final = {"Cache-Control": "no-store"}


class LookedUp(ForApplications):
    """A route for applications that answers from a list where one is at hand."""

    def get_route_handler(self) -> Handler:
        answer = super().get_route_handler()

        async def look_up(request: Request) -> Response:
            asked = PLAIN.fullmatch(request.scope["query_string"])
            if asked is None or announces_body(request.headers):
                return await answer(request)
            await self.admit(request)
            found = _find(request, int(asked["k"] or USUAL))
            return await answer(request) if found is None else found

        return look_up


def _find(request: Request, k: int) -> Response | None:
    user = request.path_params["user"]
    if not 1 <= len(user) <= LONGEST_ID:
        return None
    listed = request.app.state.service.recommender.listed_for(user, k)
    return (
        None if listed is None else Response(write_list(user, listed), headers=HEADERS, media_type="application/json")
    )


def write_list(user: str, listed: Listed) -> bytes:
    """What RecommendationsOut writes of the same."""
    items = [
        {"item": item, "score": score} if title is None else {"item": item, "score": score, "title": title}
        for item, score, title in listed.items
    ]
    return to_json({"user": user, "model": listed.version, "unknown_items": 0, "items": items})
