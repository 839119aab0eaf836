"""What a service says when it starts, and that it looks after its certificates for as long as it serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import uvicorn
from fastapi import FastAPI

from shared.errors import SettingsError
from shared.web import tls
from shared.web.listening import ListenSettings
from shared.web.server import finish_accepting, run_server
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Papers

pytestmark = pytest.mark.anyio


class Journal:
    """Plays a logger: each line as its level, its event and its sentence."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Any]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **said: self.lines.append((level, event, said.get("what")))


async def started(
    settings: ListenSettings, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Journal], Any]
) -> Journal:
    """Serve until `meanwhile` has ended, without a socket."""
    journal = Journal()

    async def serve(self: uvicorn.Server, sockets: object) -> None:
        del self, sockets
        await meanwhile(journal)

    monkeypatch.setattr(uvicorn.Server, "serve", serve)
    identities = settings.identities()
    await run_server(
        FastAPI(),
        settings,
        identities=identities,
        on_shutdown=lambda: None,
        unready_reason=lambda: None,
        logger=journal,  # type: ignore[arg-type]
    )
    return journal


async def at_once(journal: Journal) -> None:
    del journal


async def test_what_is_open_is_told_before_anybody_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    open_one, closed = ListenSettings(host="0.0.0.0"), ListenSettings()
    told = (await started(open_one, monkeypatch, at_once)).lines
    assert told[0] == ("warning", "caution", open_one.list_warnings()[0]) and "without tls_certificate" in told[0][2]
    assert (await started(closed, monkeypatch, at_once)).lines == [("info", "stopped", None)]


async def test_certificates_are_looked_after_while_it_serves(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CERTIFICATE_CHECK_SECONDS", 0.01)
    papers.make("service", begun=1, days=10)

    async def until_renewed(journal: Journal) -> None:
        await anyio.sleep(0.03)
        papers.make("service")
        with anyio.fail_after(LONGEST_SECONDS):
            while journal.lines[-1][1] != "certificate_renewed":
                await anyio.sleep(0.005)

    told = await started(ListenSettings(**papers.port()), monkeypatch, until_renewed)
    assert [event for _, event, _ in told.lines] == ["certificate_ends", "certificate_renewed", "stopped"]


async def test_an_address_that_cannot_be_listened_on_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host, expected in (
            ("127.0.0.1", f"port: expected a free one, got 127.0.0.1:{port}, which is taken: end what listens there"),
            ("203.0.113.7", f"host, port: expected an address of this machine to listen on, got 203.0.113.7:{port}"),
        ):
            with pytest.raises(SettingsError, match=expected):
                await run_server(
                    FastAPI(),
                    ListenSettings(host=host, port=port),
                    identities={},
                    on_shutdown=lambda: None,
                    unready_reason=lambda: None,
                    logger=Journal(),  # type: ignore[arg-type]
                )


async def test_a_connection_that_was_accepted_is_made_before_its_server_closes() -> None:
    made: list[asyncio.BaseTransport] = []

    class Callee(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    server = await asyncio.get_running_loop().create_server(Callee, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        while not [one for one in asyncio.all_tasks() if "_accept_connection2" in repr(one)]:
            await asyncio.sleep(0)
        assert made == []
        await finish_accepting()
        server.close()
        assert len(made) == 1
        made[0].close()
        await server.wait_closed()
