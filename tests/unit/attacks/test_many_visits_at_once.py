"""Many long visits at once must not take a silo's memory, nor keep everybody else waiting behind them.

Who: an application. A shop of 60 items computed 64 requests of 1,000 visits each in one pass, because a pass was
bounded by scores alone: 16 of them took 2.8 GB. And 1,000 lists of 1,000 items were one answer: 650 MB.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError

from client_service.compilation.sessions import compile_sessions_in_memory
from client_service.data.prefixes import Prefixes
from client_service.data.sessions import SessionShard
from client_service.runtime.workers import RequestBatcher
from client_service.serving.messages import MOST_SESSIONS, NextIn
from client_service.serving.next_items import NextItems
from client_service.serving.ranking import MOST_LISTED
from shared.method.parameters import Float32
from tests.support.questions import LONGEST_SECONDS

ITEMS = tuple(f"item-{number:02d}" for number in range(60))


def shop() -> SessionShard:
    """200 sessions of five clicks."""
    clicks = np.random.default_rng(0).integers(0, len(ITEMS), 1000)
    splits = np.zeros(200, dtype=np.int8)
    return SessionShard("shop", ITEMS, clicks, np.arange(0, 1001, 5), splits, np.arange(len(ITEMS)))


class Counting:
    """A model that notes how many clicks it is given at a time."""

    version = "run-1.1"

    def __init__(self) -> None:
        self.most = 0

    def score(self, examples: Prefixes) -> Float32:
        self.most = max(self.most, examples.pad()[0].size)
        return np.zeros((len(examples), len(ITEMS)), dtype=np.float32)


def many(sessions: int, k: int = 5) -> NextIn:
    return NextIn(sessions=tuple(ITEMS[:50] for _ in range(sessions)), k=k)


def test_a_pass_has_few_visits_however_few_items_there_are() -> None:
    model, answers = Counting(), NextItems(compile_sessions_in_memory(shop())[0])
    answers.served = model  # type: ignore[assignment]
    found = answers.answer_all([many(MOST_SESSIONS)] * 3)
    assert [len(one.results) for one in found] == [MOST_SESSIONS] * 3
    assert 0 < model.most <= 256 * 50


def test_an_answer_has_so_many_items_at_most() -> None:
    assert len(many(MOST_SESSIONS, MOST_LISTED // MOST_SESSIONS).all_sessions) == MOST_SESSIONS
    with pytest.raises(ValidationError, match=r"at most 100000 items in all lists together"):
        many(MOST_SESSIONS, MOST_LISTED // MOST_SESSIONS + 1)


@pytest.mark.anyio
async def test_requests_that_wait_share_a_pass_up_to_that_bound() -> None:
    go, groups = threading.Event(), list[int]()

    def work(group: Sequence[NextIn]) -> list[int]:
        groups.append(len(group))
        assert go.wait(LONGEST_SECONDS)
        return [len(one.all_sessions) for one in group]

    together = RequestBatcher(work, weigh=lambda asked: asked.weight, heaviest=MOST_LISTED)
    first = asyncio.create_task(together.ask(many(1)))
    async with asyncio.timeout(LONGEST_SECONDS):
        while not groups:
            await asyncio.sleep(0.001)
    others = [asyncio.create_task(together.ask(many(sessions))) for sessions in (1000, 1, 1, 998, 1, 1000)]
    await asyncio.sleep(0)
    go.set()
    assert [await one for one in (first, *others)] == [1, 1000, 1, 1, 998, 1, 1000]
    assert groups == [1, 1, 3, 1, 1]
