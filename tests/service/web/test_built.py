"""An app that is made has its routes: no request builds any, whatever thread it comes in."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from shared.web.routes import build_routes
from simulation.experiments.experiment import Experiment
from tests.conftest import BUILT

pytestmark = pytest.mark.anyio

Make = Callable[[Experiment], FastAPI]


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """After it is called, a route that is still to be built cannot be. None has been built by an earlier test."""
    BUILT.clear()

    def refuse(**_: object) -> None:
        raise AssertionError("a route was built after the app was made")

    def finish() -> None:
        monkeypatch.setattr("fastapi.routing.get_dependant", refuse)

    return finish


async def answered(app: FastAPI, path: str) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        return (await http.get(path)).status_code


def aggregator(described: Experiment) -> FastAPI:
    return create_aggregator(described.make_aggregator_settings())


def client(described: Experiment) -> FastAPI:
    return create_client(described.make_client_settings(described.shards[0], aggregator_url="http://127.0.0.1:1"))


@pytest.mark.parametrize("make", [aggregator, client])
async def test_no_route_of_a_service_is_built_by_a_request(
    make: Make, experiment: Callable[..., Experiment], finished: Callable[[], None]
) -> None:
    app = make(experiment("run"))
    finished()
    assert await answered(app, "/health/live") == 200
    assert await answered(app, "/v1/nothing") == 404


@pytest.mark.parametrize("built", [False, True])
async def test_without_it_a_request_would(built: bool, finished: Callable[[], None]) -> None:
    app, router = FastAPI(), APIRouter()

    @router.get("/one")
    async def one() -> int:
        return 1

    app.include_router(router)
    if built:
        build_routes(app)
    finished()
    if built:
        assert await answered(app, "/one") == 200
    else:
        with pytest.raises(AssertionError, match="after the app was made"):
            await answered(app, "/one")
