"""A client hears of changes by one held answer: resumed by number, given up where it is silent, false or replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_service.federation.change_stream import ChangeStream
from tests.support.questions import LONGEST_SECONDS
from tests.support.streams import serve_federation

pytestmark = pytest.mark.anyio


async def test_a_change_comes_by_the_stream_with_the_state_of_all(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            assert link.offers_stream
            stream = ChangeStream(link)
            assert await stream.is_held(state.sequence)
            assert await stream.wait_for_change(state.sequence, 0.1) is None
            await federation.start_run()
            event = await stream.wait_for_change(state.sequence, LONGEST_SECONDS)
            assert event is not None and event.state is not None
            while event.state.phase != "open":
                event = await stream.wait_for_change(event.sequence, LONGEST_SECONDS)
                assert event is not None and event.state is not None
            asked = await link.fetch_run(None, 0.0)
            assert event.state.model_copy(update={"seconds_left": None}) == asked.model_copy(
                update={"seconds_left": None}
            )
            await stream.close()
