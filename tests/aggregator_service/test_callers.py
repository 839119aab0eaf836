"""The operator by token or, to look, by a browser's password; clients by their bearer secret alone."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import Depends

from aggregator_service.access import operator_secret
from aggregator_service.callers import operator_at_browser
from shared.errors import AuthenticationError

if TYPE_CHECKING:
    from conftest import Federation, Running

pytestmark = pytest.mark.anyio
TOKEN = "operator-token-of-the-tests"
LOOKING = ("/v1/runs", "/v1/arrivals", "/v1/declaration")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def look(federation: Federation, path: str, authorization: str) -> httpx.Response:
    return await federation.http.get(path, headers={"Authorization": authorization})


@pytest.mark.parametrize("secret", ["token", "with:colons", "ä€"])
def test_the_secret_of_either_scheme(secret: str) -> None:
    assert operator_secret(f"Bearer {secret}") == operator_secret(basic("operator", secret)) == secret
    assert operator_secret(basic("operator", secret).replace("Basic", "basic")) == secret


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic ä",
        "Basic /w==",
        basic("admin", TOKEN),
        basic("", TOKEN),
        "Digest x",
        TOKEN,
    ],
)
def test_no_secret_where_the_header_is_another(header: str | None) -> None:
    with pytest.raises(AuthenticationError, match="expected"):
        operator_secret(header)


@pytest.mark.parametrize("path", LOOKING)
async def test_the_operator_looks_by_token_and_by_password(running: Running, path: str) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        secret = north.headers["Authorization"].removeprefix("Bearer ")
        expected = {
            f"Bearer {TOKEN}": 200,
            basic("operator", TOKEN): 200,
            basic("operator", "another-token-of-the-tests"): 401,
            basic("operator", ""): 401,
            basic("north", TOKEN): 401,
            basic("operator", secret): 401,
            f"Bearer {secret}": 403,
            "Basic !": 401,
        }
        assert {one: (await look(federation, path, one)).status_code for one in expected} == expected


async def test_a_password_starts_nothing(running: Running) -> None:
    async with running() as federation:
        headers = {"Authorization": basic("operator", TOKEN)}
        answer = await federation.http.post("/v1/runs", json={}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "authentication")
        assert (await federation.operate("GET", "/v1/runs")).json() == []


async def test_a_client_is_known_by_its_bearer_secret_alone(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        secret = north.headers["Authorization"].removeprefix("Bearer ")
        for user in ("north", "operator"):
            assert (await look(federation, "/v1/runs/current", basic(user, secret))).status_code == 401


async def test_a_page_makes_the_browser_ask_for_the_password(running: Running) -> None:
    async with running() as federation:

        @federation.app.get("/page", dependencies=[Depends(operator_at_browser)])
        async def read_page() -> str:
            return "seen"

        (north,) = await federation.joined("north")
        wrong = ["", basic("operator", "another-token-of-the-tests"), north.headers["Authorization"]]
        for answer in [await look(federation, "/page", one) for one in wrong]:
            assert (answer.status_code, answer.json()["code"]) == (401, "authentication")
            assert answer.headers["www-authenticate"] == 'Basic realm="LPSFed aggregator"'
        assert (await look(federation, "/page", basic("operator", TOKEN))).json() == "seen"
        assert (await look(federation, "/page", f"Bearer {TOKEN}")).json() == "seen"
