"""What two secure sums of an item table tell of one silo's items, and what a silo can do about it.

Who: an honest aggregator, or any member. Where a silo trains the rows of its own items alone (`sessions.candidates` is
`own`), the other rows of its update are as they came. So the rows that a sum has moved are items of all members, and
those that a run without one silo does not move are items that it alone has: every one of them, under masks, whatever
the draws. Nothing is refused, since runs with other members are needed; it is said, and `catalogue` moves all rows.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from client_service.data.session_files import load_session_shard
from client_service.federation.run_setup import warn_of_changed_item_rows
from client_service.runtime.device import pin_threads
from shared.method.settings import SessionSettings, method_settings
from shared.method.tensors import ITEM_TABLE, initial_parameters
from shared.strategies import build_strategy
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import open_federation
from simulation.sessions.cut import CUTS, divide_sessions
from simulation.sessions.generator import generate_sessions
from simulation.sessions.source import save_session_shard
from tests.service.attacks.test_difference_of_two_sums import VICTIM, shut_out
from tests.support.misled import ending_of, start

OWN = "own-"  # what the ids of the victim's own items begin with


@pytest.fixture
def shops(tmp_path: Path) -> tuple[Path, ...]:
    """Four shops on one chain of clicks; every third item of the last one is sold by nobody else."""
    pin_threads(1)
    sessions = generate_sessions(3, sessions=240, items=60)
    folders = []
    for shard in divide_sessions(sessions, CUTS["random"](sessions, 4, 0)):
        if shard.name == VICTIM:
            ids = [f"{OWN}{one}" if row % 3 == 0 else one for row, one in enumerate(shard.item_ids)]
            order = np.argsort(ids)
            places = np.argsort(order)
            shard = replace(shard, item_ids=tuple(ids[row] for row in order), clicks=places[shard.clicks], titles=None)
        folders.append(tmp_path / "shards" / shard.name)
        save_session_shard(folders[-1], shard)
    return tuple(folders)


def moved_items(one: Experiment, run: str, seed: int) -> set[str]:
    """Items whose rows the sum of a run's first round has moved."""
    with closing(sqlite3.connect(one.folder / "aggregator" / "aggregator.sqlite")) as database:
        [(blob,)] = database.execute("select blob from states where run = ? and round = 1", [run]).fetchall()
    after = load_file(one.folder / "aggregator" / "blobs" / blob)[ITEM_TABLE]
    tensors = build_strategy(one.strategy, one.agreed_method).tensors(one.agreed_method)
    before = initial_parameters(sorted(tensors), seed, exact=False)[ITEM_TABLE]
    assert one.catalogue is not None
    items = one.catalogue.read_text().splitlines()
    return {items[row] for row in np.flatnonzero(np.abs(after - before).max(axis=1) > 1e-3)}


@pytest.mark.anyio
@pytest.mark.parametrize("candidates", ["own", "catalogue"])
async def test_rows_that_move_with_one_silo_alone_are_its_own_items_as_the_page_says(
    shops: tuple[Path, ...], tmp_path: Path, candidates: str
) -> None:
    trained = SessionSettings(candidates=candidates)  # type: ignore[arg-type]
    method = method_settings("sessions", width=8, batch_size=20, learning_rate=0.02)
    method = method.model_copy(update={"sessions": trained})
    one = Experiment(shops, tmp_path / "run", method, "fedavg", "sessions", rounds=1, device="cpu")
    one = replace(one, secure=True)
    async with open_federation(one) as federation:
        assert (await start(federation, one)).status_code == 201
        assert (await ending_of(federation, "run-1"))["reason"] is None
        of_four = moved_items(one, "run-1", 0)
        await shut_out(federation)
        assert (await start(federation, one, clients=3, seed=1)).status_code == 201
        assert (await ending_of(federation, "run-2"))["reason"] is None
        alone = of_four - moved_items(one, "run-2", 1)
    own = {item for item in load_session_shard(one.shards[-1]).item_ids if item.startswith(OWN)}
    assert len(own) > 10
    assert alone == (own if candidates == "own" else set())


@pytest.mark.parametrize(("candidates", "warned"), [("own", True), ("catalogue", False)])
def test_a_silo_is_warned_of_it(candidates: str, warned: bool) -> None:
    method = method_settings("sessions", catalogue=60, **{"sessions.candidates": candidates})
    found = warn_of_changed_item_rows(build_strategy("fedavg", method), method, "sessions", secure=True)
    assert any("sessions.candidates = catalogue" in one for one in found) is warned
