"""Nobody can say by a query or by the body of a GET what no route has declared; every route of /v1 is tried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from aggregator_service.app import create_app
from shared.protocol.signing.events import CHANGES
from shared.protocol.wire import MEDIA_TYPE
from shared.web import problems
from shared.web.routes import require_declared
from tests.support.small import BEARER, small_aggregator

if TYPE_CHECKING:
    from conftest import Federation

pytestmark = pytest.mark.anyio
PLACES = {"{run}": "run-1", "{number}": "1", "{client}": "north"}


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Everything of /v1 that the app documents, by method and path template."""
    app = create_app(small_aggregator(Path("unused")))
    paths: dict[str, dict[str, dict[str, Any]]] = app.openapi()["paths"]
    return {
        (method.upper(), path): what
        for path, methods in paths.items()
        if path.startswith("/v1/")
        for method, what in methods.items()
    }


ROUTES = operations()
READING = [route for route in ROUTES if route[0] == "GET"]


def queried(route: tuple[str, str]) -> list[str]:
    """The query parameters that the route's documentation tells of."""
    return sorted(one["name"] for one in ROUTES[route].get("parameters", ()) if one["in"] == "query")


async def asked(federation: Federation, route: tuple[str, str], query: str = "", **options: Any) -> httpx.Response:
    """The route's answer to somebody who may ask it."""
    method, path = route
    for part, value in PLACES.items():
        path = path.replace(part, value)
    north = federation.client("north")
    if "operator" in ROUTES[route]["tags"]:
        options |= {"headers": BEARER}
    elif "enrolment" not in ROUTES[route]["tags"]:
        options |= {"auth": north.auth}
    if method == "PUT":
        options |= {"content": north.update(1.0), "headers": {"Content-Type": MEDIA_TYPE}}
    elif method == "POST":
        options |= {"json": {"client": "north", "declaration": north.declaration.model_dump(mode="json")}}
    return await federation.http.request(method, f"{path}{query}", **options)


def require_refused(answer: httpx.Response) -> str:
    assert (answer.status_code, answer.json()["code"]) == (422, "protocol"), answer.text
    detail: str = answer.json()["detail"]
    return detail


def test_the_routes_are_the_known_ones_and_those_to_come() -> None:
    assert len(ROUTES) >= 11 and len(READING) >= 8
    assert queried(("GET", "/v1/runs/current")) == ["after", "wait"]


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_a_query_that_the_route_has_not_declared_is_refused_and_not_repeated(
    shared_federation: Federation, route: tuple[str, str]
) -> None:
    names = queried(route)
    expected = f"expected at most the query parameters {names}, once each, got {{}} more: {{}}"
    other = "(another name)"
    for query, others in {
        "?user-00006=item-00850": (1, other),
        "?user-00006": (1, other),
        "?=user-00006": (1, other),
        "?user-00006=1&user-00006=2": (2, other),
        "?&": (2, other),
        "?Wait=0": (1, "Wait"),
        "?limit_of=0&user-00006": (2, f"limit_of, {other}"),
    }.items():
        assert require_refused(await asked(shared_federation, route, query)) == expected.format(*others)
    for name in names:
        assert require_refused(await asked(shared_federation, route, f"?{name}=1&{name}=1")) == expected.format(1, name)
        refused = require_refused(await asked(shared_federation, route, f"?{name}=1&user-00006=1"))
        assert refused == expected.format(1, other)


@pytest.mark.parametrize("route", READING, ids=" ".join)
async def test_a_get_with_a_body_is_refused(shared_federation: Federation, route: tuple[str, str]) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"user-00006"

    for content in (b"user-00006", pieces()):
        answer = await asked(shared_federation, route, content=content)
        assert require_refused(answer) == "expected no body, got one"


@pytest.mark.parametrize("route", READING, ids=" ".join)
async def test_what_the_route_has_declared_is_taken(shared_federation: Federation, route: tuple[str, str]) -> None:
    answer = await asked(shared_federation, route, "?" + "&".join(f"{name}=1" for name in queried(route)), content=b"")
    if route == ("GET", CHANGES):  # in one process there is no connection to hold
        assert answer.status_code == 404 and "that can be held" in answer.text
        return
    assert answer.status_code in (200, 204), answer.text


async def page(after: int = 0) -> int:
    return after


async def test_what_a_dependency_declares_is_declared() -> None:
    app = FastAPI(dependencies=[Depends(require_declared)])
    problems.install_error_handlers(app)

    @app.get("/")
    async def read(found: Annotated[int, Depends(page)], limit: int = 1) -> int:
        return found + limit

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://aggregator") as http:
        assert (await http.get("/?after=2&limit=3")).json() == 5
        assert "['after', 'limit'], once each, got 1 more" in require_refused(await http.get("/?before=2"))
