"""Each key on each route of a silo's API; a service that others can reach does not start without keys of its own."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Route

from client_service.__main__ import main
from client_service.app import create_app
from client_service.http.authentication import CallerKeys
from client_service.settings import ClientSettings, client_settings
from shared.errors import SettingsError
from shared.web.middleware import TokenBuckets
from tests.support.federation import run_client
from tests.support.given import Opened, Silos
from tests.support.small import small_client

pytestmark = pytest.mark.anyio
APPLICATION, OPERATOR = "application-key-of-the-tests-0123", "operator-key-of-the-tests-01234567"
NEEDED: dict[str, Any] = {"name": "east", "shard": "/shard", "state_directory": "/state"}
KEYS = {"application_key": APPLICATION, "operator_key": OPERATOR}
OWNERS = {"recommendations": "application", "catalogue": "application", "feedback": "application", "silo": "operator"}
UNTAGGED = {  # the routes without a tag of `OWNERS`
    "/": "operator",
    "/health/live": "anybody",
    "/health/ready": "anybody",
    "/metrics": "anybody",
    "/docs": "anybody",
    "/openapi.json": "anybody",
    "/static/{name}": "anybody",
}
PLACES = {
    "{user}": "user-01",
    "{item}": "item-01",
    "{receipt}": "0" * 32,
    "{version}": "v",
    "{name}": "page.css",
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/recommendations": {"users": ["user-01"]},
    "/v1/next": {"session": ["item-01"]},
    "/v1/members/accept": {"keys": {"north": "ab" * 32}},
    "/v1/labels": {"nodes": ["node-0001"]},
    "/v1/nodes": {"nodes": [{"node": "node-0001"}]},
    "/v1/interactions": {"interactions": [{"event": "e", "user": "user-01", "item": "item-01"}]},
}
LET_THROUGH = {  # what a silo without anything answers instead of 200
    ("GET", "/v1/erasures/{receipt}"): 404,
    ("POST", "/v1/next"): 409,
    ("POST", "/v1/labels"): 409,
    ("POST", "/v1/nodes"): 409,
    ("DELETE", "/v1/nodes/{node}"): 409,
    ("POST", "/v1/members/accept"): 409,
    ("POST", "/v1/refresh"): 202,
    ("POST", "/v1/models/{version}/serve"): 404,
}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def routes(router: FastAPI | APIRouter) -> Iterator[BaseRoute]:
    """Those of a router and of all that it includes."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else routes(inner)


def find_owners(app: FastAPI) -> dict[tuple[str, str], str]:
    """Return whose key each route asks for: its tag says it, or `UNTAGGED`. KeyError for a route that neither names."""
    owners = {}
    for route in routes(app):
        assert isinstance(route, Route)
        tag = next(iter(getattr(route, "tags", ())), "")
        owner = OWNERS[tag] if tag in OWNERS else UNTAGGED[route.path]
        owners |= {(method, route.path): owner for method in route.methods or () if method != "HEAD"}
    return owners


WHO = find_owners(create_app(client_settings(**NEEDED)))
GUARDED = [route for route, who in WHO.items() if who != "anybody"]


@pytest.fixture
def settings(silos: Silos, tmp_path: Path) -> ClientSettings:
    return small_client(silos(1)[0], tmp_path, aggregator_url="http://127.0.0.1", **KEYS)


@pytest.fixture(scope="module")
async def silo(shared_settings: Callable[..., ClientSettings]) -> AsyncIterator[httpx.AsyncClient]:
    """The service of a silo that the tests of this file share: they only look."""
    settings = shared_settings(aggregator_url="http://127.0.0.1", **KEYS)
    async with run_client(settings, settings.state_directory / "keys") as http:
        http.headers.pop("Authorization", None)
        yield http


async def ask(http: httpx.AsyncClient, route: tuple[str, str], authorization: str | None) -> httpx.Response:
    method, path = route
    for place, value in PLACES.items():
        path = path.replace(place, value)
    headers = {} if authorization is None else {"Authorization": authorization}
    return await http.request(method, path, headers=headers, json=BODIES.get(path, {} if method == "PUT" else None))


def test_a_route_without_an_owner_is_found() -> None:
    app = create_app(client_settings(**NEEDED))
    assert {path for _, path in WHO} >= {*UNTAGGED, *app.openapi()["paths"]} and set(WHO.values()) > {*OWNERS.values()}
    app.add_api_route("/v1/new", lambda: None)
    with pytest.raises(KeyError, match="/v1/new"):
        find_owners(app)


@pytest.mark.parametrize("route", [route for route in WHO if route[0] == "GET"], ids=" ".join)
async def test_whoever_has_the_route_s_key_is_answered_and_nobody_else(
    route: tuple[str, str], silo: httpx.AsyncClient
) -> None:
    await require_owner(silo, route)


@pytest.mark.parametrize("route", [route for route in WHO if route[0] != "GET"], ids=" ".join)
async def test_whoever_has_the_route_s_key_may_change_something_and_nobody_else(
    route: tuple[str, str], settings: ClientSettings, opened: Opened
) -> None:
    async with opened(settings) as http:
        http.headers.pop("Authorization", None)
        await require_owner(http, route)


async def require_owner(silo: httpx.AsyncClient, route: tuple[str, str]) -> None:
    """Call a route without a key, with a stranger's and with both of the silo's."""
    good = LET_THROUGH.get(route, 200)
    expected = {"anybody": (200,) * 4, "application": (401, 401, good, 403), "operator": (401, 401, 403, good)}
    said = (None, f"Bearer {'n' * 40}", f"Bearer {APPLICATION}", f"Bearer {OPERATOR}")
    answers = [await ask(silo, route, one) for one in said]
    assert tuple(answer.status_code for answer in answers) == expected[WHO[route]], [one.text for one in answers]
    for refused in (answer for answer in answers if answer.status_code >= 400):
        assert refused.headers["content-type"] == "application/problem+json"
        assert APPLICATION not in refused.text and OPERATOR not in refused.text


NONE_AT_ALL = ("", "Bearer", "Bearer ", OPERATOR, f"Digest {OPERATOR}", "Basic", "Basic !!", basic("operator", ""))


@pytest.mark.parametrize("route", GUARDED, ids=" ".join)
async def test_a_header_that_is_none_is_refused_and_a_browser_s_password_lets_the_operator_look(
    route: tuple[str, str], silo: httpx.AsyncClient
) -> None:
    """It opens nothing to applications, nor to another name, nor where the client is made to do something."""
    for none in (*NONE_AT_ALL, basic("admin", OPERATOR)):
        assert (await ask(silo, route, none)).status_code == 401, none
    allowed = 200 if WHO[route] == "operator" and route[0] == "GET" else 401
    assert (await ask(silo, route, basic("operator", OPERATOR))).status_code == allowed


async def test_only_the_page_makes_a_browser_ask(silo: httpx.AsyncClient) -> None:
    assert (await silo.get("/")).headers["www-authenticate"] == 'Basic realm="LPSFed client"'
    assert (await silo.get("/v1/status")).headers["www-authenticate"] == "Bearer"
    told = await silo.get("/", headers={"Authorization": f"Bearer {APPLICATION}"})
    assert told.status_code == 403 and "www-authenticate" not in told.headers


async def test_without_a_key_nothing_of_a_body_is_read(settings: ClientSettings) -> None:
    app = create_app(settings)
    head = [(b"host", b"silo"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/recommendations", "headers": head, "query_string": b""}
    sent: list[dict[str, Any]] = []

    async def body() -> dict[str, Any]:
        raise AssertionError("somebody reads the body")

    async def send(message: Any) -> None:
        sent.append(message)

    await app({**scope, "raw_path": b"/v1/recommendations", "root_path": "", "scheme": "http"}, body, send)
    assert sent[0]["status"] == 401


async def test_the_reference_marks_what_needs_a_key(silo: httpx.AsyncClient) -> None:
    paths = (await silo.get("/openapi.json")).json()["paths"]
    secured = {path for path, methods in paths.items() for said in methods.values() if said.get("security")}
    assert secured == {path.replace(":path", "") for _, path in GUARDED if path != "/"}


async def test_one_key_alone_guards_its_own_routes(settings: ClientSettings, opened: Opened) -> None:
    """On loopback; the log warns of the others."""
    alone = settings.model_copy(update={"application_key": None})
    async with opened(alone) as http:
        http.headers.pop("Authorization", None)
        assert (await ask(http, ("GET", "/v1/status"), None)).status_code == 401
        assert (await ask(http, ("POST", "/v1/recommendations"), None)).status_code == 200
    assert alone.list_warnings() == ["without application_key every caller can see lists of recommendations: set a key"]


async def test_each_key_has_a_pace_of_its_own_and_guessing_is_slowed_down(
    settings: ClientSettings, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "client_service.http.server_app.TokenBuckets", lambda rate: TokenBuckets(rate, clock=lambda: 0.0)
    )
    async with opened(settings.model_copy(update={"requests_per_second": 1.5})) as http:
        http.headers.pop("Authorization", None)
        guesses = [(await ask(http, ("GET", "/v1/status"), f"Bearer {n:064}")).status_code for n in range(5)]
        status = [(await ask(http, ("GET", "/v1/status"), f"Bearer {OPERATOR}")).status_code for _ in range(4)]
        lists = [
            (await ask(http, ("POST", "/v1/recommendations"), f"Bearer {APPLICATION}")).status_code for _ in "four"
        ]
        health = [(await ask(http, ("GET", "/health/live"), None)).status_code for _ in range(5)]
        text = await ask(http, ("GET", "/metrics"), f"Bearer {OPERATOR}")
    assert guesses == [401] * 3 + [429] * 2 and status == lists == [200] * 3 + [429] and health == [200] * 5
    assert text.status_code == 429 and text.json()["code"] == "too-many"


def test_keys_do_not_show_in_what_is_printed(settings: ClientSettings) -> None:
    shown = f"{settings!r} {CallerKeys.from_settings(settings)!r}"
    assert APPLICATION not in shown and OPERATOR not in shown


LOOPBACK = ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST")
REACHED = ("0.0.0.0", "::", "", "door", "10.0.0.7", "silo.example.org")


@pytest.mark.parametrize("host", LOOPBACK)
def test_on_loopback_it_works_without_keys_and_says_so(host: str) -> None:
    found = client_settings(**NEEDED, host=host)
    assert [word for text in found.list_warnings() for word in text.split() if word.endswith("_key")] == [
        "application_key",
        "operator_key",
    ]
    assert found.rate_limit == 0.0 and client_settings(**NEEDED, host=host, **KEYS).list_warnings() == []


@pytest.mark.parametrize("host", REACHED)
@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "application_key"),
        ({"application_key": APPLICATION}, "operator_key"),
        ({"operator_key": OPERATOR}, "application_key"),
    ],
)
def test_where_others_can_call_both_keys_are_needed(host: str, given: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: expected a key because"):
        client_settings(**NEEDED, host=host, **given)
    with_keys = client_settings(**NEEDED, host=host, **KEYS)
    assert with_keys.rate_limit > 0 and [text for text in with_keys.list_warnings() if "_key" in text] == []
    assert len(client_settings(**NEEDED, host=host, demo=True).list_warnings()) == 3  # no TLS either


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("x" * 31, "application_key: expected at least 32 characters, got 31"),
        ("example-application-key-0123456789", "application_key: expected your own secret"),
        ("change-me-change-me-change-me-change", "application_key: expected your own secret"),
        ("0" * 40, "application_key: expected a random secret"),
        (f"{APPLICATION} {APPLICATION}", "application_key: expected printable ASCII"),
        ("ä" + APPLICATION, "application_key: expected printable ASCII"),
        (OPERATOR, "operator_key: expected a key that differs from application_key"),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_key_that_others_could_know_is_refused_and_not_repeated(host: str, key: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as raised:
        client_settings(**NEEDED, host=host, application_key=key, operator_key=OPERATOR)
    assert key not in str(raised.value)


def test_a_demo_takes_an_example_s_key_but_no_short_one() -> None:
    example = client_settings(**NEEDED, host="0.0.0.0", demo=True, application_key="example-application-key-0123456789")
    assert example.key("application_key") and example.key("operator_key") is None
    with pytest.raises(SettingsError, match="at least 32"):
        client_settings(**NEEDED, demo=True, application_key="short")


def test_keys_come_from_files(tmp_path: Path) -> None:
    for name, key in KEYS.items():
        (tmp_path / name).write_text(f"{key}\n")
    files = {f"{name}_file": tmp_path / name for name in KEYS}
    found = client_settings(**NEEDED, host="0.0.0.0", **files)
    assert CallerKeys.from_settings(found) == CallerKeys(APPLICATION, OPERATOR)
    with pytest.raises(SettingsError, match="application_key: expected either it or application_key_file, got both"):
        client_settings(**NEEDED, **files, application_key=APPLICATION)
    (tmp_path / "operator_key").unlink()
    with pytest.raises(SettingsError, match="operator_key_file: expected a readable text file"):
        client_settings(**NEEDED, **files)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "application_key: expected a key because '0.0.0.0' is open to others, or demo = true; got neither"),
        ({**KEYS, "operator_key": "default" * 6}, "operator_key: expected your own secret"),
    ],
)
def test_the_program_ends_with_one_clear_line(
    given: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["client"])
    for name, value in {**NEEDED, **given, "host": "0.0.0.0"}.items():
        monkeypatch.setenv(f"LPSFED_CLIENT_{name.upper()}", value)
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith(f"client: {words}") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"aggregator_authority": "ca"}, "aggregator_authority: expected an aggregator_url that begins with https:"),
        ({"tls_client_certificate": "a"}, "tls_client_certificate: expected it and tls_client_key, got one"),
        ({"tls_client_key": "a"}, "tls_client_certificate: expected it and tls_client_key, got one"),
        ({"tls_client_certificate": "a", "tls_client_key": "b"}, "tls_client_certificate: expected an aggregator_url"),
    ],
)
def test_what_would_be_without_effect_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        client_settings(**NEEDED, **given)


@pytest.mark.parametrize(
    ("url", "warned"), [("http://10.0.0.7", True), ("https://10.0.0.7", False), ("http://[::1]:8800", False)]
)
def test_a_way_to_the_aggregator_without_tls_is_told(url: str, warned: bool) -> None:
    said = client_settings(**NEEDED, **KEYS, aggregator_url=url).list_warnings()
    assert [text for text in said if "aggregator" in text] == said and bool(said) == warned
