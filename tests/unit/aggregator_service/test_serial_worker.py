"""Worker that runs one function at a time: order, errors, callers that leave, and the context of each."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar

import pytest

from aggregator_service.process import SerialWorker

pytestmark = pytest.mark.anyio

WHO: ContextVar[str] = ContextVar("who")


async def test_functions_run_one_after_another_and_each_caller_gets_its_own_result() -> None:
    worker, running, seen = SerialWorker(), threading.Lock(), list[int]()

    def double(number: int) -> int:
        assert running.acquire(blocking=False), "two functions at once"
        time.sleep(0.002)
        seen.append(number)
        running.release()
        return 2 * number

    found = await asyncio.gather(*(worker.run_in_worker(double, number) for number in range(20)))
    assert (found, seen) == ([2 * number for number in range(20)], list(range(20)))


async def test_an_error_reaches_its_own_caller_alone() -> None:
    worker = SerialWorker()

    def divide(by: int) -> float:
        return 1 / by

    found = await asyncio.gather(*(worker.run_in_worker(divide, by) for by in (1, 0, 2)), return_exceptions=True)
    assert (found[0], type(found[1]), found[2]) == (1.0, ZeroDivisionError, 0.5)
    assert await worker.run_in_worker(divide, 4) == 0.25


async def test_a_result_does_not_wait_for_the_functions_behind_it() -> None:
    worker, go_on = SerialWorker(), threading.Event()
    first = asyncio.create_task(worker.run_in_worker(lambda: "early"))
    second = asyncio.create_task(worker.run_in_worker(go_on.wait))
    assert await first == "early"
    assert not second.done()
    go_on.set()
    assert await second


async def test_a_caller_that_leaves_takes_its_function_along_unless_it_has_begun() -> None:
    worker, go_on, begun, seen = SerialWorker(), threading.Event(), threading.Event(), list[str]()

    def begin() -> None:
        begun.set()
        go_on.wait()
        seen.append("begun")

    held = asyncio.create_task(worker.run_in_worker(begin))
    waiting = asyncio.create_task(worker.run_in_worker(seen.append, "waiting"))
    last = asyncio.create_task(worker.run_in_worker(seen.append, "last"))
    await asyncio.to_thread(begun.wait)
    for one in (held, waiting):
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    go_on.set()
    await last
    assert seen == ["begun", "last"]


async def test_each_function_sees_its_caller_s_context() -> None:
    worker = SerialWorker()

    async def ask(name: str) -> str:
        WHO.set(name)
        return await worker.run_in_worker(WHO.get)

    assert await asyncio.gather(*map(ask, ("north", "south"))) == ["north", "south"]
