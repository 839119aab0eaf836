"""The operator by token or, to look, by a browser's password; clients by their signature alone."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import Depends

from aggregator_service.http.authentication import require_operator_login
from aggregator_service.settings import aggregator_settings
from shared.errors import AuthenticationError, SettingsError
from shared.web.credentials import read_operator_secret
from shared.web.middleware import TokenBuckets
from tests.support.small import BEARER, TOKEN

if TYPE_CHECKING:
    from conftest import Federation, Running

pytestmark = pytest.mark.anyio
LOOKING = ("/v1/runs", "/v1/arrivals", "/v1/declaration")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def look(federation: Federation, path: str, authorization: str) -> httpx.Response:
    return await federation.http.get(path, headers={"Authorization": authorization})


@pytest.mark.parametrize("secret", ["token", "with:colons", "ä€"])
def test_the_secret_of_either_scheme(secret: str) -> None:
    assert read_operator_secret(f"Bearer {secret}") == read_operator_secret(basic("operator", secret)) == secret
    assert read_operator_secret(basic("operator", secret).replace("Basic", "basic")) == secret


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
        read_operator_secret(header)


@pytest.mark.parametrize("path", LOOKING)
async def test_the_operator_looks_by_token_and_by_password(running: Running, path: str) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        expected = {
            f"Bearer {TOKEN}": 200,
            basic("operator", TOKEN): 200,
            basic("operator", "another-token-of-the-tests"): 401,
            basic("operator", ""): 401,
            basic("north", TOKEN): 401,
            "Basic !": 401,
        }
        assert {one: (await look(federation, path, one)).status_code for one in expected} == expected
        assert (await north.get(path)).status_code == 403


async def test_a_password_starts_nothing(running: Running) -> None:
    async with running() as federation:
        headers = {"Authorization": basic("operator", TOKEN)}
        answer = await federation.http.post("/v1/runs", json={}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "authentication")
        assert (await federation.operate("GET", "/v1/runs")).json() == []


async def test_a_client_is_known_by_its_signature_alone(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        for other in (f"Bearer {TOKEN}", basic("operator", TOKEN), basic("north", TOKEN), "Bearer north"):
            assert (await look(federation, "/v1/runs/current", other)).status_code == 401
        assert (await north.get("/v1/runs/current")).status_code == 200


async def test_whoever_signs_is_a_client_even_with_the_operator_s_token_beside_it(running: Running) -> None:
    async with running() as federation:
        (north,) = await federation.joined("north")
        headers = BEARER | north.auth.headers("GET", b"/v1/runs")
        answer = await federation.http.get("/v1/runs", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "request-head")
        assert "authorization" in answer.json()["detail"] and TOKEN not in answer.text


async def test_a_page_makes_the_browser_ask_for_the_password(running: Running) -> None:
    async with running() as federation:

        @federation.app.get("/page", dependencies=[Depends(require_operator_login)])
        async def read_page() -> str:
            return "seen"

        (north,) = await federation.joined("north")
        wrong = ["", basic("operator", "another-token-of-the-tests")]
        for answer in [*[await look(federation, "/page", one) for one in wrong], await north.get("/page")]:
            assert (answer.status_code, answer.json()["code"]) == (401, "authentication")
            assert answer.headers["www-authenticate"] == 'Basic realm="LPSFed aggregator"'
        assert (await look(federation, "/page", basic("operator", TOKEN))).json() == "seen"
        assert (await look(federation, "/page", f"Bearer {TOKEN}")).json() == "seen"


async def test_of_a_stranger_s_run_nothing_is_read(running: Running) -> None:
    async with running() as federation:
        head = [(b"host", b"aggregator"), (b"content-type", b"application/json"), (b"content-length", b"1000000")]
        scope = {"type": "http", "method": "POST", "path": "/v1/runs", "headers": head, "query_string": b""}
        sent: list[Any] = []

        async def body() -> Any:
            raise AssertionError("somebody reads the body")

        async def send(message: Any) -> None:
            sent.append(message)

        await federation.app({**scope, "raw_path": b"/v1/runs", "root_path": "", "scheme": "http"}, body, send)
    assert sent[0]["status"] == 401


async def test_whoever_calls_too_fast_is_told_to_come_again_and_nothing_is_recorded(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's ledger has the attempt; the aggregator has read nothing of it."""
    monkeypatch.setattr("aggregator_service.app.TokenBuckets", lambda _: TokenBuckets(1.0, clock=lambda: 0.0))
    async with running() as federation:
        found = [await look(federation, "/v1/runs", f"Bearer {TOKEN}") for _ in range(3)]
        assert [one.status_code for one in found] == [200, 200, 429]
        assert (found[-1].json()["code"], found[-1].headers["retry-after"]) == ("too-many", "1")
        assert (await federation.http.get("/health/live")).status_code == 200


def test_beyond_loopback_there_is_a_limit_and_the_log_says_what_is_open() -> None:
    given = {"state_directory": "unused", "operator_token": TOKEN}
    here, reached = aggregator_settings(**given), aggregator_settings(**given, host="0.0.0.0")
    assert (here.rate_limit, here.list_warnings()) == (0.0, [])
    assert reached.rate_limit == 100.0 and ["tls_certificate" in text for text in reached.list_warnings()] == [True]
    assert aggregator_settings(**given, host="0.0.0.0", requests_per_second=0).rate_limit == 0.0


@pytest.mark.parametrize("token", ["change-me-change-me", "example-operator-token", "0" * 32])
def test_a_token_that_others_could_know_is_for_demos_alone(token: str) -> None:
    given = {"state_directory": "unused", "operator_token": token}
    with pytest.raises(SettingsError, match=r"operator_token: expected (your own|a( random)?) secret") as raised:
        aggregator_settings(**given)
    assert token not in str(raised.value)
    assert aggregator_settings(**given, demo=True).token() == token
