"""Ids of items and whole visits stay in their silo: in no line of a log, in no file of the aggregator, on no ledger."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from client_service.serving.next_items import NextItems
from shared.method.settings import MethodSettings
from shared.web.logs import LineFormatter
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import fail_when_stuck, open_federation

pytestmark = pytest.mark.anyio
PACKAGES = ("aggregator_service", "client_service")
PRIVATE = re.compile(r"item-\d|stranger-4711|\bhr\d|mrr|embedding", re.I)
ASKED = (
    {"session": ["item-0001", "stranger-4711"], "exclude": ["item-0002"]},
    {"sessions": [["item-0003"]], "item-0004": 1},
    {"session": ["item-0005"], "k": "item-0006"},
    {"session": []},
)


async def test_no_click_leaves_its_silo(
    visits: Callable[[int], list[Path]],
    taught: MethodSettings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in PACKAGES:
        caplog.set_level("DEBUG", package)
    one = Experiment(tuple(visits(2)), tmp_path / "run", taught, "fedga", "sessions", rounds=1, seed=1, device="cpu")
    async with open_federation(one) as federation:
        await execute_run(federation, one.run_request(), fail_when_stuck(lambda _: None))
        silo = federation.clients[one.names[0]]
        key = {"Authorization": f"Bearer {one.application_key}"}
        answers = [await silo.post("/v1/next", json=body, headers=key) for body in ASKED]
        assert [answer.status_code for answer in answers] == [200, 422, 422, 422]
        monkeypatch.setattr(NextItems, "answer_all", lambda _, asked: [][len(asked)])
        assert (await silo.post("/v1/next", json=ASKED[0], headers=key)).status_code == 500
    lines = [
        LineFormatter(record.name if record.name in PACKAGES else "").format(record)
        for record in caplog.records
        if record.name in PACKAGES or record.levelno >= logging.WARNING
    ]
    assert any('"request_failed"' in line for line in lines)
    assert [line for line in lines if PRIVATE.search(line)] == []
    assert files_with(tmp_path / "run" / "aggregator", b"item-00") == []
    assert files_with(tmp_path / "run", b"item-00", "ledger.jsonl") == []
    assert files_with(tmp_path / "shards", b"item-00") != []  # the search finds what is there


def files_with(folder: Path, needle: bytes, name: str = "*") -> list[str]:
    """Files of that name in which these bytes are."""
    found = [path for path in folder.rglob(name) if path.is_file()]
    assert found, f"there is nothing called {name} to search"
    return [path.name for path in found if needle in path.read_bytes()]
