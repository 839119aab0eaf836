"""Updates that come at once share a commit: each is answered as it would be alone, and only once it is durable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection

from aggregator_service.rounds import uploads
from aggregator_service.storage import run_store
from aggregator_service.storage.database import Database
from aggregator_service.storage.records import StoredUpdate

if TYPE_CHECKING:
    from conftest import Running

pytestmark = pytest.mark.anyio
NAMES = [f"silo-{number}" for number in range(12)]


def count_commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the receipts in each commit; each takes long enough for others to come, the first most."""
    sizes: list[int] = []
    real = run_store.commit_writes

    def commit_writes(database: Database, writes: Iterable[Any]) -> None:
        given = list(writes)
        sizes.append(sum(len(one.keywords["stored"]) for one in given))
        time.sleep(0.3 if len(sizes) == 1 else 0.05)
        real(database, given)

    monkeypatch.setattr(run_store, "commit_writes", commit_writes)
    return sizes


async def test_they_share_commits(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as federation:
        *silos, _ = await federation.begun(*NAMES, "silent")
        sizes = count_commits(monkeypatch)
        bodies = [one.update(1.0) for one in silos]
        twice = zip([*silos, *silos[:3]], [*bodies, *bodies[:3]], strict=True)
        answers = await asyncio.gather(*(one.put(1, body) for one, body in twice))
        assert sorted(one.status_code for one in answers) == [200] * 3 + [201] * len(silos)
        assert sum(sizes) == len(silos) and len(sizes) < len(silos) / 2
        received = {
            one["client"]: one["digest"]
            for one in (await federation.history())["rounds"][0]["participants"]
            if one["received"]
        }
        assert received == {one["client"]: one["digest"] for one in (answer.json() for answer in answers)}


async def test_one_whose_row_is_refused_refuses_no_other(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as federation:
        *silos, _ = await federation.begun(*NAMES, "silent")
        count_commits(monkeypatch)

        def add_updates(connection: Connection, *, stored: Sequence[StoredUpdate]) -> None:
            if any(one.receipt.client == NAMES[5] for one in stored):
                raise OSError(28, "full")
            run_store.add_updates(connection, stored=stored)

        monkeypatch.setattr(uploads, "add_updates", add_updates)
        answers: list[Any] = await asyncio.gather(*(one.put(1, one.update(1.0)) for one in silos))
        refused = {one.name: answer.status_code for one, answer in zip(silos, answers, strict=True)}
        assert refused.pop(NAMES[5]) in (503, 507) and set(refused.values()) == {201}
        monkeypatch.undo()
        assert await silos[5].sends(1, 1.0) == 201


async def test_a_caller_that_leaves_during_the_commit_takes_neither_row_nor_body_away(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as federation:
        *silos, _ = await federation.begun(*NAMES, "silent")
        sizes = count_commits(monkeypatch)
        calls = [asyncio.create_task(one.put(1, one.update(1.0))) for one in silos]
        async with asyncio.timeout(30):
            while sum(sizes) < len(calls):  # the last commit has begun: one, if all came together
                await asyncio.sleep(0.001)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        again = [await one.put(1, one.update(1.0)) for one in silos]
        assert {answer.status_code for answer in again} <= {200, 201}
        assert sum(answer.status_code == 200 for answer in again) >= 2
        assert await federation.client("silent").sends(1, 1.0) == 201
        assert await silos[0].level(1) == 1.0  # the sum reads every body that a row names
