"""A client holds its limits of time against the aggregator's once it knows them, and takes part all the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from aggregator_service.app import create_app
from aggregator_service.settings import aggregator_settings
from client_service.settings import client_settings
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn

if TYPE_CHECKING:
    from conftest import Opened, Silos, Until

pytestmark = pytest.mark.anyio
TOKEN = "operator-token-of-the-tests"


@pytest.mark.parametrize(("timeout", "deadline", "warned"), [(30.0, 3600.0, 0), (70.0, 3600.0, 1), (70.0, 165.0, 2)])
async def test_what_does_not_fit_is_shown_and_nothing_is_refused(
    tmp_path: Path,
    silos: Silos,
    small: MethodSettings,
    keys: Path,
    opened: Opened,
    until: Until,
    timeout: float,
    deadline: float,
    warned: int,
) -> None:
    said = {"state_directory": tmp_path / "aggregator", "operator_token": TOKEN, "keys_directory": keys}
    app = create_app(aggregator_settings(method=small, **said))
    (shard,) = silos(1)
    settings = client_settings(
        name=shard.name,
        shard=shard,
        state_directory=tmp_path / shard.name,
        aggregator_url="http://aggregator",
        method=small,
        device="cpu",
        timeout_seconds=timeout,
        wait_seconds=5.0,
    )
    operator = httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://aggregator",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    async with app.router.lifespan_context(app), operator, opened(settings, httpx.ASGITransport(app)) as http:
        request = RunIn(rounds=1, clients=1, deadline_seconds=deadline, method=small).model_dump(mode="json")
        assert (await operator.post("/v1/runs", json=request)).status_code == 201

        async def finished() -> bool:
            return bool((await http.get("/v1/quality")).json()["finished"])

        await until(finished)
        told = [one for one in (await http.get("/v1/status")).json()["warnings"] if "_seconds" in one]
    assert len(told) == warned
    assert all("timeout_seconds: expected less than the aggregator's signature_seconds = 60" in one for one in told[:1])
    assert all("the run's deadline_seconds = 165" in one for one in told[1:])
