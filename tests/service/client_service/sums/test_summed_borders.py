"""Silos of nodes sum their borders through the real services: each reads its own nodes' rows, masked as in the open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_service.data.node_graphs import NodeShard
from client_service.models.nodes.closed_form import build_design_spec, make_design
from client_service.settings import ClientSettings
from client_service.sums.node_borders import NODE_BORDERS_SUM, Borders
from client_service.sums.storage import complete_shard
from shared.errors import PrivacyError
from shared.method.settings import MethodSettings, method_settings
from shared.sums.node_borders import BORDERS
from tests.support.federation import Federation
from tests.support.node_federation import Federate, federate_nodes, hold, kept
from tests.support.node_silos import cut_graph, draw_graph
from tests.support.questions import wait_until

pytestmark = pytest.mark.anyio
GRAPH = draw_graph(48, 0.9)


def settings(**changed: Any) -> MethodSettings:
    sizes = {"nodes.features": 3, "nodes.classes": 2, "nodes.hops": 2, "nodes.random_features": 4}
    sums = {"basis.kind": "node_gram", "sums.node_borders.kind": "node_borders", "basis.least_pairs": 1}
    alone = {"model": "node_ridge", "strategy.train": False, "strategy.send": False}
    return method_settings(**alone, **sums, **sizes, **{"nodes.border_numbers": 1 << 15}, **changed)


def silos(count: int = 4) -> list[NodeShard]:
    found = cut_graph(GRAPH, [place % count for place in range(48)])
    return [replace(one, name=f"client-{place + 1}") for place, one in enumerate(found)]


@pytest.fixture
def federate(tmp_path: Path, impatient: None) -> Federate:
    del impatient
    return federate_nodes(tmp_path)


async def sum_borders(running: Federation, clients: list[ClientSettings]) -> list[Any]:
    """Holds the run of borders. Returns what each silo keeps of it."""
    ended = await hold(running, "run-1", BORDERS)
    assert ended["phase"] == "finished", ended
    return [await kept(one, BORDERS, "run-1") for one in clients]


def complete(one: ClientSettings, shard: NodeShard) -> NodeShard:
    found = complete_shard(one.state_directory / "basis", one.method, shard)
    assert isinstance(found, NodeShard)
    return found


async def test_masked_and_open_sums_tell_each_silo_the_same_and_the_next_sums_count_over_whole_borders(
    federate: Federate,
) -> None:
    method, shards, read_in = settings(), silos(), []
    whole = make_design(GRAPH, build_design_spec(method.nodes))
    for secure in (True, False):
        async with federate(shards, method, secure=secure, name=f"secure-{secure}") as (running, clients):
            await running.enter()
            known = await sum_borders(running, clients)
            assert len({one.digest for one in known}) == 1 and isinstance(known[0], Borders)
            own = [complete(*pair) for pair in zip(clients, shards, strict=True)]
            read_in.append(own)
            for shard in own:
                rows = [GRAPH.rows[node] for node in shard.node_ids]
                np.testing.assert_allclose(make_design(shard, build_design_spec(method.nodes)), whole[rows], atol=2e-3)
            summed = await hold(running, "run-2", "basis")
            assert summed["phase"] == "finished", summed
            gram = await kept(clients[0], "basis", "run-2")
            train = np.concatenate([[GRAPH.rows[shard.node_ids[row]] for row in shard.nodes_of(0)] for shard in shards])
            np.testing.assert_allclose(gram.square, whole[train].T.astype(float) @ whole[train], rtol=2e-3, atol=0.05)
            assert not (complete(clients[1], shards[0]).borders.counts).any(), "another silo reads nothing of its rows"  # type: ignore[union-attr]
    for masked, bare in zip(*read_in, strict=True):
        np.testing.assert_array_equal(masked.borders.sums, bare.borders.sums)


async def test_nothing_is_summed_without_the_silos_word_and_not_with_a_lower_k(federate: Federate) -> None:
    method = settings()
    async with federate(silos(), method) as (running, clients):
        policy = clients[0].policy.model_copy(update={"node_borders": "no"})
        with pytest.raises(PrivacyError, match="policy: expected node_borders = 'secure'"):
            clients[0].model_copy(update={"policy": policy}).declaration()
        await running.enter()
        other = {**method.nodes.model_dump(), "border_least": 3, "border_own": 2}
        asked = {"clients": 4, "part": BORDERS, "method": {"nodes": other}}
        answer = await running.operator.post("/v1/runs", json=asked)
        assert answer.status_code == 201, answer.text

        async def refused() -> bool:
            return all("expected a run with nodes.border_least = 5" in one for one in await running.problems())

        await wait_until(refused)


async def test_a_silo_that_joins_later_reads_nothing_and_goes_on_by_its_own_edges(federate: Federate) -> None:
    method, shards = settings(), silos()
    async with federate(shards, method) as (running, clients):
        await running.enter(*clients[:3])
        ended = await hold(running, "run-1", BORDERS, clients=3)
        assert ended["phase"] == "finished", ended
        summed = await hold(running, "run-2", "basis", clients=3)
        assert summed["phase"] == "finished", summed
        await running.enter(clients[3])
        assert not (await kept(clients[3], "basis", "run-2")).included
        borders = complete(clients[3], shards[3]).borders
        assert borders is None or not borders.counts.any()
        first = complete(clients[0], shards[0])
        assert first.borders is not None and first.foreign is not None
        assert (first.borders.counts > 0).all() and (first.borders.counts < first.foreign.counts).any()


def test_the_declared_sum_is_held_before_gram_sums() -> None:
    from shared.sums import list_sums

    assert list(list_sums(settings())) == [BORDERS, "basis"]
    assert NODE_BORDERS_SUM.declared.keeps_members
