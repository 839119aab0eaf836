"""SIGKILL of either side in any moment of a run that sums, and a supervisor's restart: all silos end with one sum.

As test_kill_matrix, of the rounds that come before training: real processes, sockets and files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from client_service.data.node_files import load_node_shard, save_node_shard
from client_service.sums.storage import complete_shard, load_basis_head
from shared.method.settings import MethodSettings, method_settings
from shared.sums.node_borders import BORDERS
from simulation.experiments.experiment import Experiment
from tests.support.node_silos import cut_graph, draw_graph
from tests.support.nodes import small_graph
from tests.system.faults.federation import LONGEST_SECONDS
from tests.system.faults.points import AGGREGATOR, CLIENT, MOMENTS, Plan
from tests.system.faults.supervised import LOOK_SECONDS, supervised
from tests.system.faults.test_kill_matrix import require_no_remains

if TYPE_CHECKING:
    from conftest import Silos

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
ALWAYS = ("after upload, before commit", AGGREGATOR)  # the others are for `make faults`
IN_TRAINING = {("while training", AGGREGATOR), ("while training", CLIENT), ("while writing a blob", CLIENT)}
"""Moments that a basis run has not."""
ROUNDS = {"items": 2, "nodes": 1, "borders": 2}
"""The round that is hit: iterated sums of items and borders of nodes have three, Gram sums of nodes one."""
PARTS = {"items": "basis", "nodes": "basis", "borders": BORDERS}
CELLS = [
    pytest.param(kind, moment, victim, marks=() if (moment, victim) == ALWAYS else pytest.mark.slow)
    for kind in ROUNDS
    for moment in MOMENTS
    for victim in (AGGREGATOR, CLIENT)
    if (moment, victim) not in IN_TRAINING
]


@pytest.fixture
def described(silos: Silos, small: MethodSettings, tmp_path: Path) -> Callable[[str, str], Experiment]:
    basis = small.basis.model_copy(update={"kind": "iterated", "rank": 5, "rounds": 3})
    method = small.model_copy(update={"basis": basis})

    def describe(kind: str, name: str) -> Experiment:
        if kind == "items":
            return Experiment(silos(3), tmp_path / name, method, rounds=1, seed=7, device="cpu")
        paths = tuple(tmp_path / "nodes" / f"client-{number}" for number in (1, 2, 3))
        if kind == "borders":
            cut = cut_graph(draw_graph(36, 0.9), [place % 3 for place in range(36)])
            for path, shard in zip(paths, cut, strict=True):
                save_node_shard(path, replace(shard, name=path.name))
            chosen = {
                "model": "node_ridge",
                "strategy.train": False,
                "strategy.send": False,
                "nodes.random_features": 6,
            }
            sizes = {"nodes.features": 3, "nodes.classes": 2, "nodes.border_numbers": 1 << 16}
            both = {"basis.kind": "node_gram", "sums.node_borders.kind": "node_borders"}
            summed = method_settings(**chosen, **sizes, **both)
            return Experiment(paths, tmp_path / name, summed, "local", "nodes", rounds=1, seed=7, device="cpu")
        for seed, path in enumerate(paths):
            save_node_shard(path, small_graph(seed=seed, name=path.name))
        sizes = {"nodes.features": 4, "nodes.classes": 2, "nodes.random_features": 6}
        sums = {"basis.kind": "node_gram", "strategy.train": False, "strategy.send": False}
        summed = method_settings(model="node_ridge", **sizes, **sums)
        return Experiment(paths, tmp_path / name, summed, "local", "nodes", rounds=1, seed=7, device="cpu")

    return describe


async def digests(experiment: Experiment, part: str) -> set[str]:
    """Of the basis that each client keeps, once all do; of borders, what each client reads of them together."""
    folders = [experiment.state_folder(shard) / "basis" for shard in experiment.shards]
    while True:
        heads = [load_basis_head(folder, part) for folder in folders]
        found = {head.digest for head in heads if head is not None}
        if all(heads) and part == BORDERS:
            assert len(found) == 1, "the tables are alike, and noise: other ones in each federation"
            shards = map(load_node_shard, experiment.shards)
            read = [complete_shard(one, experiment.method, shard) for one, shard in zip(folders, shards, strict=True)]
            assert all(one.borders.counts.all() for one in read)
            return {" ".join(one.borders.digest for one in read)}
        if all(heads):
            return found
        await anyio.sleep(LOOK_SECONDS)


async def live(experiment: Experiment, part: str, plan: Plan | None = None) -> tuple[set[str], list[str]]:
    """The digests at the end, and who died."""
    with anyio.fail_after(LONGEST_SECONDS):
        async with supervised(experiment, plan) as running:
            await running.begin(part=part)
            found = await digests(experiment, part)
            while plan is not None and not running.deaths:
                await anyio.sleep(LOOK_SECONDS)
            return found, [name for name, _ in running.deaths]


@pytest.mark.parametrize(("kind", "moment", "victim"), CELLS)
async def test_whoever_is_killed_whenever_all_silos_end_with_the_same_sum(
    described: Callable[[str, str], Experiment], kind: str, moment: str, victim: str
) -> None:
    undisturbed, _ = await live(described(kind, "undisturbed"), PARTS[kind])
    experiment = described(kind, "disturbed")
    plan = Plan(moment, victim, experiment.folder / "supervised", ROUNDS[kind])
    assert await live(experiment, PARTS[kind], plan) == (undisturbed, [victim])
    assert len(undisturbed) == 1
    require_no_remains(experiment)
