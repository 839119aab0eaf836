"""Pages of allowed origins may ask what applications may, and read every answer; of the operator's routes none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from client_service.settings import ClientSettings, client_settings
from shared.errors import SettingsError
from shared.web.middleware import TokenBuckets
from tests.support.given import Opened

pytestmark = pytest.mark.anyio
NEEDED: dict[str, Any] = {"name": "east", "shard": "/shard", "state_directory": "/state"}
SHOP, ELSEWHERE = "https://shop.example", "https://evil.example"
KEYS = {"application_key": "application-key-of-the-tests-0123", "operator_key": "operator-key-of-the-tests-01234567"}
APPLICATION, OPERATOR = ({"Authorization": f"Bearer {key}"} for key in KEYS.values())
ASKED = "/v1/users/user-01/recommendations"
OPERATORS = ("/", "/v1/status", "/v1/ledger", "/v1/models", "/metrics", "/docs", "/openapi.json", "/health/live")


@pytest.fixture
async def silo(
    settings: ClientSettings, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A silo with keys and an allowed origin, where each caller may ask six times."""
    monkeypatch.setattr(
        "client_service.http.server_app.TokenBuckets", lambda rate: TokenBuckets(rate, clock=lambda: 0.0)
    )
    given = settings.model_dump(exclude_unset=True) | KEYS | {"allowed_origins": (SHOP,), "requests_per_second": 3.0}
    async with opened(client_settings(**given)) as http:
        http.headers.pop("Authorization", None)
        yield http


def preflight(origin: str, method: str = "GET", headers: str = "authorization") -> dict[str, str]:
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return {"Origin": origin, **asked}


def shared(answer: httpx.Response) -> dict[str, str]:
    """What an answer says of other origins."""
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",")}


async def test_a_preflight_is_answered_without_a_key_and_counts_for_nobody(silo: httpx.AsyncClient) -> None:
    for _ in range(20):  # more than a caller may ask, even by a key that no browser would show
        answer = await silo.options(
            ASKED, headers=preflight(SHOP, "DELETE", "authorization,content-type") | APPLICATION
        )
        assert answer.status_code == 200
    told = shared(answer)
    assert told["access-control-allow-origin"] == SHOP and "Origin" in words(answer.headers["vary"])
    assert words(told["access-control-allow-methods"]) == {"GET", "HEAD", "POST", "PUT", "DELETE"}
    assert {"Authorization", "Content-Type", "X-Request-ID"} <= words(told["access-control-allow-headers"])
    assert "access-control-allow-credentials" not in told
    assert (await silo.get(ASKED, headers=APPLICATION)).status_code == 200


@pytest.mark.parametrize(
    "asked",
    [preflight(ELSEWHERE), preflight("null"), preflight(SHOP, "PATCH"), preflight(SHOP, headers="x-other")],
    ids=["origin", "null", "method", "header"],
)
async def test_a_preflight_of_anything_else_is_refused(silo: httpx.AsyncClient, asked: dict[str, str]) -> None:
    answer = await silo.options(ASKED, headers=asked)
    assert (answer.status_code, answer.json()["code"]) == (400, "cross-origin")
    assert ("access-control-allow-origin" in answer.headers) == (asked["Origin"] == SHOP)


async def test_each_answer_of_an_application_s_route_is_readable_from_the_allowed_origin_alone(
    silo: httpx.AsyncClient,
) -> None:
    async def ask(path: str, origin: str | None = SHOP, method: str = "GET", **headers: str) -> httpx.Response:
        return await silo.request(method, path, headers=headers | ({} if origin is None else {"Origin": origin}))

    answers = {
        200: await ask(ASKED, **APPLICATION),
        401: await ask(ASKED),
        403: await ask(ASKED, **OPERATOR),
        404: await ask("/v1/users/user-01/nothing"),
        405: await ask(ASKED, method="PATCH"),
        421: await ask(ASKED, Host="evil.example"),
        422: await ask(f"{ASKED}?x=1", **APPLICATION),
    }
    answers[429] = [await ask(ASKED) for _ in range(6)][-1]
    for status, answer in answers.items():
        assert answer.status_code == status and answer.headers["x-request-id"]
        exposed = {"access-control-expose-headers": "Retry-After, X-Request-ID"}
        assert shared(answer) == {"access-control-allow-origin": SHOP} | exposed
        assert words(answer.headers["vary"]) == {"Origin"}
    assert answers[429].headers["retry-after"]
    for origin in (ELSEWHERE, "null", None):
        other = await ask(ASKED, origin, **APPLICATION)
        assert "access-control-allow-origin" not in other.headers and words(other.headers["vary"]) == {"Origin"}


async def test_a_mistake_of_the_service_is_readable_too(
    silo: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.http.authentication.CallerKeys.admit", lambda *_: 1 / 0)
    answer = await silo.get(ASKED, headers={"Origin": SHOP})
    assert answer.status_code == 500 and answer.headers["access-control-allow-origin"] == SHOP


@pytest.mark.parametrize("path", OPERATORS)
async def test_what_is_no_application_s_says_nothing_of_other_origins(silo: httpx.AsyncClient, path: str) -> None:
    answer = await silo.get(path, headers=OPERATOR | {"Origin": SHOP})
    refused = await silo.options(path, headers=preflight(SHOP))
    assert (answer.status_code, refused.status_code) == (200, 405)
    assert shared(answer) == shared(refused) == {}


async def test_no_origin_is_allowed_by_default(settings: ClientSettings, opened: Opened) -> None:
    assert settings.allowed_origins == ()
    async with opened(settings) as http:
        answer, refused = (
            await http.get(ASKED, headers={"Origin": SHOP}),
            await http.options(ASKED, headers=preflight(SHOP)),
        )
    assert (answer.status_code, refused.status_code) == (200, 405)
    assert shared(answer) == shared(refused) == {} and "vary" not in answer.headers


def test_allowed_origins_come_from_the_environment_as_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = ("https://shop.example", "http://localhost:3000", "http://[::1]:3000")
    monkeypatch.setenv("LPSFED_CLIENT_ALLOWED_ORIGINS", f'["{origins[0]}", "{origins[1]}", "{origins[2]}"]')
    assert client_settings(**NEEDED).allowed_origins == origins


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "shop.example",
        "https://*.example",
        "https://shop.example/",
        "https://Shop.example",
        "https://shop.example:443",
        "http://shop.example:80",
        "https://u@shop.example",
        "https://shop.example\n",
        "",
    ],
)
def test_an_origin_that_no_browser_would_send_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match="allowed_origins: expected"):
        client_settings(**NEEDED, allowed_origins=(origin,))
