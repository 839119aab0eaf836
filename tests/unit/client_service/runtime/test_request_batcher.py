"""Requests that come while one is computed share the next computation, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from client_service.runtime.workers import RequestBatcher
from shared.errors import ConflictError, DataError, FederationError
from tests.support.questions import LONGEST_SECONDS


class Doubling:
    """Doubles numbers; nothing is computed before `go` is set, 13 is refused, and a group with a 0 in it fails."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.groups: list[list[int]] = []

    def __call__(self, group: Sequence[int]) -> list[int | FederationError]:
        self.groups.append([*group])
        assert self.go.wait(LONGEST_SECONDS)
        if 0 in group:
            raise DataError("expected a number, got 0")
        return [ConflictError("unlucky") if one == 13 else 2 * one for one in group]


async def begun(work: Doubling, groups: int) -> None:
    """Until so many groups have begun."""
    async with asyncio.timeout(LONGEST_SECONDS):
        while len(work.groups) < groups:
            await asyncio.sleep(0.001)


def test_who_comes_while_one_is_computed_is_in_the_next_group_and_gets_his_own_answer() -> None:
    async def ask() -> None:
        work = Doubling()
        doubled = RequestBatcher(work)
        first = asyncio.create_task(doubled.ask(1))
        await begun(work, 1)
        others = [asyncio.create_task(doubled.ask(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        work.go.set()
        assert [await one for one in (first, *others)] == [2, 4, 6, 8]
        assert work.groups == [[1], [2, 3, 4]]
        assert await doubled.ask(5) == 10

    asyncio.run(ask())


def test_no_group_is_larger_than_the_limit_and_who_has_gone_is_in_none() -> None:
    async def ask() -> None:
        work = Doubling()
        doubled = RequestBatcher(work, most=2)
        first = asyncio.create_task(doubled.ask(1))
        await begun(work, 1)
        others = [asyncio.create_task(doubled.ask(number)) for number in (2, 3, 4, 5)]
        await asyncio.sleep(0)
        others.pop(1).cancel()
        work.go.set()
        assert [await one for one in (first, *others)] == [2, 4, 8, 10]
        assert work.groups == [[1], [2, 4], [5]]

    asyncio.run(ask())


def test_an_error_reaches_its_group_alone() -> None:
    async def ask() -> None:
        work = Doubling()
        doubled = RequestBatcher(work)
        work.go.set()
        with pytest.raises(DataError, match="got 0"):
            await doubled.ask(0)
        assert await doubled.ask(1) == 2

    asyncio.run(ask())


def test_an_answer_that_is_an_error_is_its_own_caller_s() -> None:
    async def ask() -> None:
        work = Doubling()
        doubled = RequestBatcher(work)
        first = asyncio.create_task(doubled.ask(1))
        await begun(work, 1)
        others = [asyncio.create_task(doubled.ask(number)) for number in (2, 13, 3)]
        await asyncio.sleep(0)
        work.go.set()
        assert (await first, await others[0], await others[2]) == (2, 4, 6)
        with pytest.raises(ConflictError, match="unlucky"):
            await others[1]
        assert work.groups == [[1], [2, 13, 3]]

    asyncio.run(ask())
