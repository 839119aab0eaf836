"""What both services log, of a whole run and of all that can be asked of a silo, holds nothing private."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from client_service.serving.recommender import Recommender
from shared.web.logs import LineFormatter
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import open_federation

pytestmark = pytest.mark.anyio
PACKAGES = ("aggregator_service", "client_service")
PRIVATE = re.compile(
    r"user-\d|item-\d|Title of|stranger-4711|recall|ndcg|divergence|\brho\b|margin|epsilon|embedding", re.I
)
CALLERS = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Every line that a process of either service would have written by now, at its most talkative."""
    for package in PACKAGES:
        caplog.set_level("DEBUG", package)
    yield (
        lambda: (
            [LineFormatter(one.name).format(one) for one in caplog.records if one.name in PACKAGES]
            + [
                LineFormatter("").format(one)
                for one in caplog.records
                if one.name not in PACKAGES and one.levelno >= logging.WARNING
            ]
        )
    )


async def everything_asked(silo: httpx.AsyncClient, key: str) -> list[int]:
    """Of the silo's own API, rightly and wrongly."""
    silo.headers["X-Request-ID"] = CALLERS
    ask = {"Authorization": f"Bearer {key}"}
    asked = [
        await silo.get("/v1/users/user-01/recommendations", params={"k": 3}, headers=ask),
        await silo.get("/v1/users/stranger-4711/recommendations", headers=ask),
        await silo.get("/v1/items/item-02/similar", headers=ask),
        await silo.get("/v1/items/item-99/similar", headers=ask),
        await silo.post("/v1/recommendations", json={"users": ["user-03"], "exclude": ["item-03"]}, headers=ask),
        await silo.post("/v1/recommendations", json={"basket": ["item-04"], "user-05": 1}, headers=ask),
        await silo.get("/v1/user-06/nowhere", headers=ask),
        await silo.get("/v1/users/user-07/recommendations", headers={"Authorization": "Bearer item-07"}),
    ]
    for path in ("status", "quality", "spectrum", "ledger"):
        asked.append(await silo.get(f"/v1/{path}"))
    return [answer.status_code for answer in asked]


async def test_no_line_of_a_whole_run_holds_anything_private_and_a_caller_s_id_stays_in_its_silo(
    experiment: Callable[..., Experiment], written: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = experiment("run")
    async with open_federation(described) as federation:
        await execute_run(federation, described.run_request(), lambda _: None)
        silo = federation.clients["client-1"]
        statuses = await everything_asked(silo, described.application_key)
        assert {200, 401, 404, 422} <= set(statuses)

        def broken(self: Recommender, user: str) -> None:  # whether the framework answers or what stands before it
            raise KeyError(user, self)

        monkeypatch.setattr(Recommender, "_read_user", broken)
        key = {"Authorization": f"Bearer {described.application_key}"}
        answer = await silo.get("/v1/users/user-08/recommendations", headers=key)
        assert answer.status_code == 500 and answer.json()["request_id"] == CALLERS
        answer = await federation.operator.get("/v1/runs", headers={"X-Request-ID": CALLERS})
        assert answer.is_success and answer.headers["x-request-id"] != CALLERS
    lines = written()
    events = {json.loads(line)["event"] for line in lines}
    assert events >= {"request", "joined", "uploaded", "round_aggregated", "request_failed"}
    assert [line for line in lines if PRIVATE.search(line)] == []
    for secret in (described.token, described.application_key, described.operator_key):
        assert not any(secret in line for line in lines)
    told = [json.loads(line) for line in lines]
    mine = {one.get("route") for one in told if one.get("request_id") == CALLERS and one["event"] == "request"}
    assert "/v1/users/{user}/recommendations" in mine and "/v1/runs" not in mine
    assert all(len(one["request_id"]) == 32 for one in told if one["event"] == "request")
