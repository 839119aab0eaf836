"""Small writes of one turn leave together; much leaves at once; what was written before the end is not lost."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from shared.web.connection import MOST_WAITING, BufferedTransport

pytestmark = pytest.mark.anyio


@pytest.fixture
def beneath() -> Mock:
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    return transport


def written(beneath: Mock) -> list[bytes]:
    return [call.args[0] for call in beneath.write.call_args_list]


async def test_pieces_of_a_turn_are_one_write(beneath: Mock) -> None:
    corked = BufferedTransport(beneath, asyncio.get_running_loop())
    for piece in (b"head ", b"body", b""):
        corked.write(piece)
    assert written(beneath) == []
    await asyncio.sleep(0)
    corked.write(b"next")
    await asyncio.sleep(0)
    assert written(beneath) == [b"head body", b"next"]


async def test_much_does_not_wait(beneath: Mock) -> None:
    """Else somebody who does not listen would have an answer of any length kept here."""
    corked = BufferedTransport(beneath, asyncio.get_running_loop())
    corked.write(b"a" * MOST_WAITING)
    assert written(beneath) == []
    corked.write(b"b")
    assert [len(one) for one in written(beneath)] == [MOST_WAITING + 1]


async def test_what_was_written_leaves_before_the_end_and_is_dropped_with_an_abort(beneath: Mock) -> None:
    corked = BufferedTransport(beneath, asyncio.get_running_loop())
    corked.write(b"last")
    corked.close()
    assert written(beneath) == [b"last"]
    assert beneath.method_calls[-1][0] == "close"
    corked.write(b"more")
    corked.abort()
    await asyncio.sleep(0)
    assert written(beneath) == [b"last"] and beneath.abort.called


async def test_nothing_is_written_to_a_connection_that_is_gone(beneath: Mock) -> None:
    corked = BufferedTransport(beneath, asyncio.get_running_loop())
    corked.write(b"late")
    beneath.is_closing.return_value = True
    await asyncio.sleep(0)
    assert written(beneath) == []


async def test_all_else_is_the_transport_s_own(beneath: Mock) -> None:
    corked = BufferedTransport(beneath, asyncio.get_running_loop())
    corked.pause_reading()
    assert beneath.pause_reading.called and corked.get_extra_info is beneath.get_extra_info
