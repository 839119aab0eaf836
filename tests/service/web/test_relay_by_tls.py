"""The relay by TLS: plain on the side of its callers, and to nobody but whom its authority has signed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from fastapi import FastAPI

from audit.probes.network import probe_gateway
from shared.web.listening import ListenSettings
from shared.web.relay import Relay, main
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Papers, Served

pytestmark = pytest.mark.anyio


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    app.add_api_route("/health/live", lambda: {"status": "live"})
    return app


@asynccontextmanager
async def relayed(url: str, authority: Path, host: str = "127.0.0.1") -> AsyncIterator[str]:
    relay = Relay(host, urlsplit(url).port or 0, ssl.create_default_context(cafile=authority))
    server = await asyncio.start_server(relay.handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with anyio.fail_after(LONGEST_SECONDS):
            while relay._open:  # whoever has hung up is let go on the other side too
                await anyio.sleep(0.005)


async def test_what_is_asked_plainly_reaches_a_service_that_speaks_tls_alone(
    app: FastAPI, served: Served, papers: Papers
) -> None:
    with served(app, ListenSettings(**papers.port())) as url:
        async with relayed(url, papers.crt("authority")) as plain, httpx.AsyncClient(trust_env=False) as http:
            answers = [await http.get(f"{plain}/health/live", timeout=LONGEST_SECONDS) for _ in range(3)]
        assert [answer.json() for answer in answers] == [{"status": "live"}] * 3


@pytest.mark.parametrize("other", ["another authority", "another name"])
async def test_whoever_is_not_believed_is_not_called(app: FastAPI, served: Served, papers: Papers, other: str) -> None:
    authority = papers.crt("stranger" if other == "another authority" else "authority")
    shown = papers.port("elsewhere" if other == "another name" else "service")
    with served(app, ListenSettings(**shown)) as url:
        async with relayed(url, authority) as plain, httpx.AsyncClient(trust_env=False) as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"{plain}/health/live", timeout=LONGEST_SECONDS)


def test_an_authority_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_text("no certificate")
    for name in ("empty", "missing"):
        assert main(["8800", "host:1", str(tmp_path / name)]) == 2
        assert "expected certificates of an authority as PEM" in capsys.readouterr().err


async def test_a_probe_in_the_place_of_a_gateway_sees_that_its_part_answers_by_tls(
    app: FastAPI, served: Served, papers: Papers
) -> None:
    believed, other = (ssl.create_default_context(cafile=papers.crt(name)) for name in ("authority", "stranger"))
    with served(app, ListenSettings(**papers.port())) as url:
        port = urlsplit(url).port or 0
        with anyio.fail_after(LONGEST_SECONDS):
            assert (await probe_gateway("localhost", ("127.0.0.1",), port, believed)).held
            assert not (await probe_gateway("localhost", ("127.0.0.1",), port, other)).held
            assert not (await probe_gateway("localhost", ("127.0.0.1",), port)).held
