"""Silos of nodes sum Gram matrices through the real services: weights of one ridge on all silos' nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_service.data.node_files import load_node_shard, save_node_shard
from client_service.data.node_graphs import TRAIN, UNKNOWN, UNLABELLED, NodeShard
from client_service.models.nodes.closed_form import build_design_spec, count_gram, make_design, solve_ridge
from client_service.sums.node_gram import SummedGram
from shared.errors import PrivacyError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.sums.node_directions import PRODUCTS
from tests.support.node_federation import Federate, federate_nodes, hold, kept
from tests.support.nodes import small_graph
from tests.support.questions import read, wait_until

pytestmark = pytest.mark.anyio
NAMES = ("client-1", "client-2", "client-3", "client-4")
STRENGTHS = (1e-3, 1e-2, 1e-1)
WIDE = {"nodes.features": 40, "nodes.directions": 8}


def settings(**changed: Any) -> MethodSettings:
    sizes = {"nodes.features": 4, "nodes.classes": 2, "nodes.hops": 2, "nodes.random_features": 6}
    alone = {"strategy.train": False, "strategy.send": False}
    return method_settings(**{"model": "node_ridge", "basis.kind": "node_gram", **sizes, **alone, **changed})


def graphs(method: MethodSettings) -> list[NodeShard]:
    sizes = {"features": method.nodes.features, "classes": method.nodes.classes}
    return [small_graph(nodes=72, seed=seed, name=name, **sizes) for seed, name in enumerate(NAMES)]


@pytest.fixture
def federate(tmp_path: Path, impatient: None) -> Federate:
    """`async with federate(shards, method)` -> real services of silos of nodes that share sums alone."""
    del impatient
    return federate_nodes(tmp_path)


def require_one_ridge(known: SummedGram, shards: list[NodeShard], method: MethodSettings) -> None:
    """The weights of the sums are those of a ridge on all training nodes in one place."""
    spec, projection = build_design_spec(method.nodes), known.find_projection(method.nodes)
    rows = [make_design(one, spec, projection)[one.nodes_of(TRAIN)] for one in shards]
    labels = np.concatenate([one.labels[one.nodes_of(TRAIN)] for one in shards])
    whole = count_gram(np.concatenate(rows), labels, method.nodes.classes)
    pooled = replace(known, included=True).pool(shards[0], rows[0])
    np.testing.assert_allclose(solve_ridge(pooled, STRENGTHS), solve_ridge(whole, STRENGTHS), atol=1e-6)


async def test_one_masked_upload_gives_the_weights_of_one_ridge_and_a_model_in_each_silo(federate: Federate) -> None:
    method = settings()
    shards = graphs(method)
    async with federate(shards, method) as (running, clients):
        await running.enter()
        summed = await hold(running, "run-1", "basis")
        assert summed["phase"] == "finished", summed
        found = [await kept(one, "basis", "run-1") for one in clients]
        assert len({known.digest for known in found}) == 1 and all(known.included for known in found)
        require_one_ridge(found[0], shards, method)
        columns = method.nodes.columns
        assert columns == 1 + 3 * 4 + 6 and summed["request"]["rounds"] == 1
        assert summed["sum"]["bytes"] < 4 * (8 * (columns * (columns + 1) // 2 + columns) + 4000)
        assert "silos hold graphs of nodes" in summed["sum"]["reason"] or summed["sum"]["kind"] == "node_gram"

        async def judged() -> bool:
            told = [await read(http, "quality") for http in running.silos.values()]
            return all(one["run"] == "run-1" and one["finished"] for one in told)

        await wait_until(judged)
        assert await running.problems() == [""] * 4
        refused = await running.operator.post("/v1/runs", json={"clients": 4})
        assert "this federation shares sums alone and trains nothing" in refused.text


async def test_masked_and_open_sums_are_the_same_bit_for_bit(federate: Federate) -> None:
    found = []
    for secure in (True, False):
        method = settings(**WIDE)
        async with federate(graphs(method), method, secure=secure, name=f"secure-{secure}") as (running, clients):
            await running.enter()
            for run, part in (("run-1", "directions"), ("run-2", "basis")):
                ended = await hold(running, run, part)
                assert ended["phase"] == "finished", ended
            found.append([await kept(one, "basis", "run-2") for one in clients])
    assert len({known.digest for silos in found for known in silos}) == 1
    for name, value in found[0][0].arrays().items():
        np.testing.assert_array_equal(value, found[1][0].arrays()[name])


async def test_wide_features_are_summed_over_the_directions_of_all_silos(federate: Federate) -> None:
    method = settings(**WIDE)
    shards = graphs(method)
    async with federate(shards, method) as (running, clients):
        await running.enter(*clients[:3])
        early = await running.operator.post("/v1/runs", json={"clients": 3, "part": "basis"})
        assert early.status_code == 422 and "expected a finished run of the part 'directions' first" in early.text
        await hold(running, "run-1", "directions")
        named = await running.operator.post("/v1/runs", json={"clients": 3, "part": "basis", "over": "run-9"})
        assert "over: expected run-1, the newest run of the part 'directions', got run-9" in named.text
        summed = await hold(running, "run-2", "basis")
        assert summed["phase"] == "finished" and summed["request"]["over"] == "run-1"
        known = await kept(clients[0], "basis", "run-2")
        require_one_ridge(known, shards[:3], method)

        await running.enter(clients[3])  # late: it sends nothing, and adds its own nodes to what it keeps
        late = await kept(clients[3], "basis", "run-2")
        assert late.digest == known.digest and not late.included
        assert (await kept(clients[3], "directions", "run-1")).digest == (
            await kept(clients[0], "directions", "run-1")
        ).digest
        design = make_design(shards[3], build_design_spec(method.nodes), late.find_projection(method.nodes))
        pooled = late.pool(shards[3], design)
        assert pooled.nodes == sum(len(one.nodes_of(TRAIN)) for one in shards)


async def test_silos_of_other_classes_or_columns_are_told_apart(federate: Federate) -> None:
    method = settings()
    shards = graphs(method)
    shards[2] = replace(shards[2], classes=tuple(reversed(shards[2].classes)))
    async with federate(shards, method) as (running, _):
        await running.enter()
        ended = await hold(running, "run-1", "basis")
        assert ended["phase"] == "failed"
        expected = "expected every silo to have the same list of items, or features and classes of nodes (catalogue)"
        assert expected in ended["reason"] and "client-3" in ended["reason"]


async def test_a_second_sum_in_which_one_silo_alone_has_changed_is_not_opened(federate: Federate) -> None:
    method = settings()
    shards = graphs(method)
    async with federate(shards, method) as (running, clients):
        async with AsyncExitStack() as running.stack:
            await running.enter()
            assert (await hold(running, "run-1", "basis"))["phase"] == "finished"
        one = clients[1]
        changed = load_node_shard(one.shard)
        erased = changed.labels.copy()
        erased[changed.nodes_of(TRAIN)[0]] = UNKNOWN
        splits = np.where(erased == UNKNOWN, np.int8(UNLABELLED), changed.splits)
        save_node_shard(one.shard, replace(changed, labels=erased, splits=splits))
        async with AsyncExitStack() as running.stack:
            await running.enter()
            ended = await hold(running, "run-2", "basis")
        assert ended["phase"] == "failed"
        assert "this sum would tell of client-2 alone" in ended["reason"]
        for other in (clients[0], clients[2]):  # the same sums again tell nothing new
            graph = load_node_shard(other.shard)
            save_node_shard(other.shard, replace(graph, features=graph.features * np.float32(0.5)))
        async with AsyncExitStack() as running.stack:
            await running.enter()
            assert (await hold(running, "run-3", "basis"))["phase"] == "finished", "three have changed together"


async def test_a_sum_of_labels_of_two_silos_is_not_opened(federate: Federate) -> None:
    method = settings()
    shards = graphs(method)[:3]
    nobody = np.full(72, UNKNOWN)
    shards[0] = replace(shards[0], labels=nobody, splits=np.full(72, UNLABELLED, np.int8))
    async with federate(shards, method) as (running, _):
        await running.enter()
        ended = await hold(running, "run-1", "basis")
        assert ended["phase"] == "failed"
        assert "or labels of nodes, got 2 of 3: this sum is not opened" in ended["reason"]
        told = await read(running.silos["client-1"], "status")
        assert any("no training nodes of a class" in one and "adds zeros" in one for one in told["warnings"])


async def test_nothing_is_summed_without_the_silos_word_and_not_with_other_settings(federate: Federate) -> None:
    method = settings(**WIDE)
    async with federate(graphs(method), method) as (running, clients):
        for word in ("node_gram", "node_directions"):
            policy = clients[0].policy.model_copy(update={word: "no"})
            with pytest.raises(PrivacyError, match=f"policy: expected {word} = 'secure'"):
                clients[0].model_copy(update={"policy": policy}).declaration()
        await running.enter()
        await hold(running, "run-1", "directions")
        other = method.model_dump(exclude_unset=True) | {"nodes": {**method.nodes.model_dump(), "hops": 3}}
        asked = {"clients": 4, "part": "basis", "method": {name: other[name] for name in ("basis", "nodes")}}
        assert (await running.operator.post("/v1/runs", json=asked)).status_code == 201

        async def refused() -> bool:
            return all("expected a run with nodes.hops = 2" in one for one in await running.problems())

        await wait_until(refused)


Lie = Callable[[str, Any], Any]


def tell_lies(monkeypatch: pytest.MonkeyPatch, lie: Lie) -> None:
    """An aggregator that hands out other directions. lie: (client, words) -> words."""
    from aggregator_service.aggregation import computation

    told = computation.client_answer

    def answer(strategy: Any, state: Any, client: str, *, summed: bool) -> Parameters:
        found = told(strategy, state, client, summed=summed)
        if PRODUCTS not in found.arrays:
            return found
        return Parameters({**found.arrays, PRODUCTS: lie(client, np.array(found.arrays[PRODUCTS]))}, found.scalars)

    monkeypatch.setattr(computation, "client_answer", answer)


async def test_an_aggregator_that_hands_one_silo_other_directions_gets_no_gram_sum(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns would be others than those that it is added to. Silos compare the directions."""
    tell_lies(monkeypatch, lambda client, words: words + np.uint32(client == "client-1"))
    method = settings(**WIDE)
    async with federate(graphs(method), method) as (running, _):
        await running.enter()
        await hold(running, "run-1", "directions")
        ended = await hold(running, "run-2", "basis")
        assert ended["phase"] == "failed"
        assert "or features and classes of nodes (catalogue), got 2 different ones" in ended["reason"]


async def test_no_second_gram_sum_over_the_same_nodes_has_directions_of_an_aggregator_s_choice(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would tell more of the nodes' features than one projection does."""
    lies = [False]
    tell_lies(monkeypatch, lambda _, words: words + np.uint32(lies[0]))
    method = settings(**WIDE)
    async with federate(graphs(method), method) as (running, _):
        await running.enter()
        await hold(running, "run-1", "directions")
        assert (await hold(running, "run-2", "basis"))["phase"] == "finished"
        again = await hold(running, "run-3", "directions")
        assert again["phase"] == "finished", "the same sum tells nothing new"
        assert (await hold(running, "run-4", "basis"))["phase"] == "finished"
        lies[0] = True
        await hold(running, "run-5", "directions")
        asked = await running.operator.post("/v1/runs", json={"clients": len(running.silos), "part": "basis"})
        assert asked.status_code == 201, asked.text

        async def is_refused() -> bool:
            return "or the directions, of an earlier sum" in caplog.text

        await wait_until(is_refused)  # not for the run's deadline, which is minutes away
        assert (await running.history("run-6"))["phase"] != "finished"
