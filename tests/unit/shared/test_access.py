"""Only what was sent to a name of the service's own comes through, whatever an address elsewhere resolves to."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from shared.web.middleware import HostCheck

ALLOWED = ("Silo.Example.org", "dotted.example.org.")
OWN = (
    "127.0.0.1",
    "127.0.0.1.",
    "10.1.2.3:8801",
    "[::1]",
    "[fe80::1]:8801",
    "[::ffff:10.1.2.3]:80",
    "localhost",
    "LOCALHOST:8801",
    "localhost.",
    "silo",
    "client_1:8801",
    "silo-1.localhost",
    "client.lpsfed.svc",
    "client.lpsfed.SVC.:8801",
    "client.lpsfed.svc.cluster.local",
    "silo.example.org",
    "SILO.example.ORG.:443",
    "dotted.example.org",
)
FOREIGN = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "127.0.0.1.nip.io:8801",
    "client.lpsfed.svc.evil.example",
    "evil.notsvc",
    "evil.notlocalhost",
    "cluster.local",
    "evil.silo.example.org",
    "127.0.0.256",
    "127.0.0.1.1",
    "[evil.example]",
    "[::g]",
    "[]",
    "::1",
    ".svc",
    ".",
    "",
    ":8801",
    "silo:evil.example",
    "silo, evil.example",
    "silo@evil.example",
    "silo/",
    "silo\n",
    "evil\xe9",
)


async def inside(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("inside")(scope, receive, send)


async def nothing() -> Message:
    return {"type": "http.request"}


async def ignored(message: Message) -> None:
    del message


async def ask(*hosts: str) -> httpx.Response:
    """The answer to a request with these Host headers, whatever they hold and however many there are."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", host.encode("latin-1")) for host in hosts]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    await HostCheck(inside, allowed=ALLOWED)(scope, nothing, send)
    return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=sent[1]["body"])


@pytest.mark.anyio
@pytest.mark.parametrize("host", OWN)
async def test_a_name_of_its_own_is_answered(host: str) -> None:
    answer = await ask(host)
    assert (answer.status_code, answer.text) == (200, "inside")


@pytest.mark.anyio
@pytest.mark.parametrize("host", FOREIGN)
async def test_any_other_name_is_refused_and_not_repeated(host: str) -> None:
    answer = await ask(host)
    assert (answer.status_code, answer.headers["content-type"]) == (421, "application/problem+json")
    assert answer.json()["code"] == "host" and "expected an IP address" in answer.json()["detail"]
    assert "evil" not in answer.text and "example" not in answer.text


@pytest.mark.anyio
@pytest.mark.parametrize("hosts", [(), ("silo", "silo"), ("silo", "evil.example")], ids=["none", "twice", "both"])
async def test_exactly_one_host_is_expected(hosts: tuple[str, ...]) -> None:
    assert (await ask(*hosts)).status_code == 421


@pytest.mark.anyio
async def test_what_is_no_request_comes_through() -> None:
    came: list[str] = []

    async def app(scope: Scope, *_: object) -> None:
        came.append(scope["type"])

    await HostCheck(app)({"type": "lifespan"}, nothing, ignored)
    assert came == ["lifespan"]
