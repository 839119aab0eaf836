"""A held connection costs its socket alone, and is given up where its caller does not read or sends more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.web.connection_limits import ConnectionLimiter, LimitedConnection
from shared.web.held_streams import LAST_CHUNK, MOST_UNREAD, HeldConnection, encode_chunk, find_hold


class Transport:
    """What a held connection writes to."""

    def __init__(self) -> None:
        self.written, self.unread, self.high, self.ended = b"", 0, 0, ""

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str) -> None:
        del name

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return bool(self.ended)

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def held() -> tuple[HeldConnection, Transport, ConnectionLimiter]:
    transport, limiter = Transport(), ConnectionLimiter(most=1)
    limited = LimitedConnection("127.0.0.1", lambda: True, transport.abort)
    assert limiter.admit(limited) == "admitted"
    return HeldConnection(transport, limited, limiter.release), transport, limiter  # type: ignore[arg-type]


def admitted(limiter: ConnectionLimiter) -> str:
    return limiter.admit(LimitedConnection("127.0.0.1", lambda: True, lambda: None))


def test_a_chunk_is_written_as_http_has_it() -> None:
    assert encode_chunk(b"x" * 31) == b"1f\r\n" + b"x" * 31 + b"\r\n"


def test_an_answer_ends_with_its_last_chunk_and_the_connection_makes_room() -> None:
    one, transport, limiter = held()
    assert admitted(limiter) == "full"  # a held connection is closed for no other
    one.write(b"5\r\nevent\r\n")
    one.end()
    one.write(b"more")
    assert (transport.written, transport.ended) == (b"5\r\nevent\r\n" + LAST_CHUNK, "closed")
    one.connection_lost(None)
    assert admitted(limiter) == "admitted"


@pytest.mark.parametrize("what", ["does not read", "sends more", "has not read at the end"])
def test_a_caller_that_does_otherwise_is_cut_off(what: str) -> None:
    one, transport, _ = held()
    if what == "does not read":
        assert transport.high == MOST_UNREAD
        one.pause_writing()
    elif what == "sends more":
        one.data_received(b"GET / HTTP/1.1\r\n")
    else:
        transport.unread = 1
        one.end()
    assert transport.ended == "aborted" and transport.written == b""


def test_its_end_is_told_once() -> None:
    one, _, _ = held()
    told: list[str] = []
    one.on_lost = lambda: told.append("lost")
    one.connection_lost(None)
    one.connection_lost(None)
    assert told == ["lost"]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_only_a_connection_that_takes_chunks_is_held(version: str) -> None:
    hold = SimpleNamespace()
    scope: dict[str, Any] = {"http_version": version, "state": {"hold_connection": hold}}
    assert (find_hold(scope) is hold) == (version == "1.1")
    assert find_hold({"http_version": version}) is None


def test_half_of_the_connections_remain_for_calls() -> None:
    limiter = ConnectionLimiter(most=6, of_address=2)
    for address, room in (("192.0.2.1", True), ("192.0.2.2", True), ("127.0.0.1", True), ("192.0.2.3", False)):
        one = LimitedConnection(address, lambda: False, lambda: None, trusted=True)
        assert limiter.admit(one) == "admitted" and limiter.may_hold(one) == room
        if room:
            limiter.hold(one)
            again = LimitedConnection(address, lambda: False, lambda: None, trusted=True)
            assert limiter.admit(again) == "admitted"
            assert not (limiter.may_hold(again) and address != "127.0.0.1")  # of one address as well
            limiter.release(again)
    limiter.release(one)
