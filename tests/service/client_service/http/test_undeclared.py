"""What a route of a silo has not declared is refused and not repeated; every guarded route is tried."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from client_service.app import create_app
from tests.support.small import small_client

pytestmark = pytest.mark.anyio
CANARY = "canary-4711"
PLACES = {"{user}": "u", "{item}": "i"}


def routes() -> list[tuple[str, str]]:
    """Everything of /v1 that the app documents: method, and path with ids."""
    found = []
    for path, methods in create_app(small_client(Path("unused"), Path("unused"))).openapi()["paths"].items():
        for place, word in PLACES.items():
            path = path.replace(place, word)
        found += [(method.upper(), path) for method in methods if path.startswith("/v1/")]
    return found


ROUTES = routes()


def test_the_routes_are_the_known_ones_and_those_to_come() -> None:
    assert len(ROUTES) >= 12 and ("POST", "/v1/interactions") in ROUTES


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_a_query_that_the_route_has_not_declared_is_refused_and_not_repeated(
    shared_silo: httpx.AsyncClient, route: tuple[str, str]
) -> None:
    for query in (f"?{CANARY}=1", f"?{CANARY}", "?without=a&exclude_seen=true"):
        answer = await shared_silo.request(route[0], route[1] + query)
        assert answer.status_code == 422 and "query parameters" in answer.json()["detail"], query
        assert CANARY not in answer.text


async def test_a_parameter_that_comes_twice_and_the_body_of_a_get_are_refused(shared_silo: httpx.AsyncClient) -> None:
    path = "/v1/users/u/recommendations"
    assert (await shared_silo.get(f"{path}?k=1&k=2")).status_code == 422
    assert (await shared_silo.request("GET", path, content=b"{}")).status_code == 422
    assert (await shared_silo.get(f"{path}?k=1&exclude_seen=false")).status_code == 200
