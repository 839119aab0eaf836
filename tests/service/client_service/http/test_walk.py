"""How many files a reader of one answer has to open."""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from client_service.settings import ClientSettings
from tests.support.kept import keep_first_model
from tests.support.telling import Serving, event, items_of, post

ROOT = Path(sys.modules[ClientSettings.__module__].__file__ or "").parents[1]
PRODUCT = tuple(f"{ROOT}/{name}/" for name in ("client_service", "shared"))
MOST_FILES = 15  # of which a function runs, 4 of them before the route: 36 in all at first
WATCHED: ContextVar[bool] = ContextVar("watched", default=False)


@pytest.mark.anyio
async def test_a_list_after_an_event_is_computed_in_few_files(settings: ClientSettings, serving: Serving) -> None:
    """Counted in the request's own task and the worker thread that it waits for; other jobs of the service go on."""
    entered = set[str]()

    def note(frame: FrameType, kind: str, _: Any) -> None:
        if kind == "call" and WATCHED.get() and frame.f_code.co_filename.startswith(PRODUCT):
            entered.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))

    shard, _ = keep_first_model(settings)
    threading.setprofile(note)
    try:
        async with serving() as http:
            for user in shard.user_ids[:2]:  # what the first list needs once is there for the second
                await post(http, event(user, shard.item_ids[5]))
                sys.setprofile(note)
                watched = WATCHED.set(user == shard.user_ids[1])
                answer = await items_of(http, user, "k=5")
                WATCHED.reset(watched)
                sys.setprofile(None)
                assert len(answer["items"]) == 5 and "fallback" not in answer
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert {"client_service/serving/recommender.py", "client_service/compiled/model.py"} <= entered
    assert len(entered) <= MOST_FILES, "\n".join(sorted(entered))
