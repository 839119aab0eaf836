"""The relay carries bytes both ways to the one service behind it, and nobody can point it elsewhere."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress

import anyio
import pytest

from shared.web import relay as subject
from shared.web.relay import Relay, main
from tests.support.echo import asked, echo, listening
from tests.support.questions import LONGEST_SECONDS

pytestmark = pytest.mark.anyio


async def test_bytes_go_both_ways_whole_and_an_end_of_one_direction_is_passed_on() -> None:
    content = os.urandom(3 << 20)  # more than any buffer between the two holds
    async with listening(echo) as behind, listening(Relay("127.0.0.1", behind).handle) as port:
        assert await asked(port, content) == b"echo " + content
        answers = await asyncio.gather(*(asked(port, b"%d" % number) for number in range(20)))
    assert answers == [b"echo %d" % number for number in range(20)]


async def test_a_request_for_another_place_reaches_the_one_behind() -> None:
    async with (
        listening(echo) as elsewhere,
        listening(echo) as behind,
        listening(Relay("127.0.0.1", behind).handle) as port,
    ):
        request = b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % elsewhere
        assert await asked(port, request) == b"echo " + request


async def test_while_nobody_is_behind_callers_are_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subject, "CONNECT_AGAIN_SECONDS", 0.2)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with listening(Relay("127.0.0.1", closed.getsockname()[1]).handle) as port:
            assert await asked(port, b"anybody?") == b""
        assert "not reached (ConnectionRefusedError)" in capsys.readouterr().err


@pytest.mark.parametrize("first", [ConnectionRefusedError(), socket.gaierror("no such name yet")], ids=repr)
async def test_a_service_that_restarts_is_tried_again(monkeypatch: pytest.MonkeyPatch, first: OSError) -> None:
    reach, failures = asyncio.open_connection, [first, first]

    async def reach_at_last(host: str, port: int, **options: object) -> object:
        if failures and "ssl" in options:  # the relay's own attempt, not the caller's
            raise failures.pop()
        return await reach(host, port, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "open_connection", reach_at_last)
    async with listening(echo) as behind, listening(Relay("127.0.0.1", behind).handle) as port:
        assert await asked(port, b"now?") == b"echo now?"
    assert not failures


async def test_a_certificate_that_is_not_trusted_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    async def refuse(*_: object, **__: object) -> None:
        attempts.append(1)
        raise ssl.SSLCertVerificationError("not this one")

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(ssl.SSLError):
        await Relay("127.0.0.1", 1)._connect()
    assert attempts == [1]


async def test_beyond_so_many_connections_callers_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_CONNECTIONS", 1)
    async with listening(echo) as behind, listening(Relay("127.0.0.1", behind).handle) as port:
        _, held = await asyncio.open_connection("127.0.0.1", port)
        await anyio.sleep(0.05)
        with suppress(ConnectionResetError):  # what it sent was never read
            assert await asked(port, b"one more") == b""
        held.close()
        assert await _until_free(port) == b"echo next"


async def _until_free(port: int) -> bytes:
    """The answer once the connection that was held is over."""
    answer = b""
    with anyio.fail_after(LONGEST_SECONDS):
        while not answer:
            with suppress(ConnectionResetError):
                answer = await asked(port, b"next")
    return answer


async def test_a_connection_without_a_byte_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "IDLE_SECONDS", 0.05)
    async with listening(echo) as behind, listening(Relay("127.0.0.1", behind).handle) as port:
        with anyio.fail_after(LONGEST_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()


@pytest.mark.parametrize("arguments", [[], ["8800"], ["x", "host:1"], ["8800", "host"]])
def test_other_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == "relay: expected PORT HOST:PORT [AUTHORITY]\n"
