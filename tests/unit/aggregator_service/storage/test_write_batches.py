"""Batches of writes: many at once cost few transactions, one alone waits for nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio
import pytest

from aggregator_service.storage.write_batches import WriteBatches

pytestmark = pytest.mark.anyio
GATHER = 0.2


class Store:
    """Store that notes its batches, and refuses some items."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def store(self, given: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(given))
        return [ValueError(one) if one < 0 else 10 * one for one in given]


async def add_in_turn(batches: WriteBatches[int, int], items: Sequence[int], pause: float) -> None:
    async with anyio.create_task_group() as tasks:
        for one in items:
            tasks.start_soon(batches.add, one)
            if pause:
                await anyio.sleep(pause)


async def test_what_comes_while_a_busy_worker_gathers_is_one_batch() -> None:
    store = Store()
    batches = WriteBatches(store.store, gather_seconds=GATHER)
    await add_in_turn(batches, (1, 2), 0.0)
    await add_in_turn(batches, range(3, 8), 0.005)
    assert store.batches == [[1, 2], [3, 4, 5, 6, 7]]


async def test_who_comes_alone_does_not_wait() -> None:
    store = Store()
    batches = WriteBatches(store.store, gather_seconds=GATHER)
    began = time.monotonic()
    assert [await batches.add(one) for one in (1, 2, 3)] == [10, 20, 30]
    assert time.monotonic() - began < GATHER
    assert store.batches == [[1], [2], [3]]


async def test_an_item_that_is_refused_refuses_no_other_of_its_batch() -> None:
    store = Store()
    batches = WriteBatches(store.store, gather_seconds=GATHER)
    outcomes: dict[int, object] = {}

    async def add(one: int) -> None:
        try:
            outcomes[one] = await batches.add(one)
        except ValueError as error:
            outcomes[one] = type(error)

    async with anyio.create_task_group() as tasks:
        for one in (1, -2, 3):
            tasks.start_soon(add, one)
    assert outcomes == {1: 10, -2: ValueError, 3: 30} and len(store.batches) == 1
