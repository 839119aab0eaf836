"""Posted nodes, edges and labels: durable, in answers at once, and merged into the shard; erased ones gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_service.compilation.nodes import compile_nodes_in_memory
from client_service.data.node_files import load_node_shard, save_node_shard
from client_service.data.node_graphs import TRAIN, UNLABELLED, NodeShard
from client_service.event_log.messages import NodesIn
from client_service.event_log.node_log import NodeLog
from client_service.event_log.node_store import NodeStore
from client_service.event_log.node_update import lock_node_shard, merge_nodes_into_shard
from client_service.model_store.node_models import freeze_nodes
from client_service.serving.node_labels import NodeLabels
from client_service.serving.node_messages import LabelOut, LabelsIn
from client_service.training.node_trainer import NodeTrainer
from shared.errors import ConflictError, NotFoundError, ProtocolError
from shared.method.settings import method_settings
from tests.support.nodes import small_graph

CPU = torch.device("cpu")


class GivenSilo:
    """A silo of nodes in a folder, with its log."""

    def __init__(self, folder: Path, shard: NodeShard) -> None:
        self.folder, self.shard = folder, shard
        save_node_shard(folder / "shard", shard)
        self.store = NodeStore(folder)
        self.answers = self.open(shard)
        self.log = NodeLog(self.store, self.answers.overlay, folder / "shard")

    def open(self, shard: NodeShard) -> NodeLabels:
        answers = NodeLabels(*compile_nodes_in_memory(shard))
        answers.served = freeze_nodes("run-1.0", NodeTrainer(shard, method_settings(model="node_ridge"), CPU))
        answers.overlay.attach_store(self.store)
        return answers

    def tell(self, *nodes: dict[str, Any]) -> Any:
        return asyncio.run(self.log.add_nodes(NodesIn.model_validate({"nodes": nodes})))

    def label(self, *nodes: Any) -> LabelOut:
        return self.answers.answer(LabelsIn.model_validate({"nodes": nodes})).results[0]

    def refresh(self) -> NodeShard:
        with lock_node_shard(self.folder / "shard") as before:
            absorbed = merge_nodes_into_shard(before, self.store)
            again = merge_nodes_into_shard(absorbed.after, self.store)
            assert again.after.digest == absorbed.after.digest
            save_node_shard(self.folder / "shard", absorbed.after)
        self.answers = self.open(absorbed.after)
        self.log.switch_overlay(self.answers.overlay, lambda: None)
        self.log.delete_absorbed(absorbed.batch, absorbed.after.digest, absorbed.kept)
        self.store.erasures.complete()
        return load_node_shard(self.folder / "shard")


@pytest.fixture
def silo(tmp_path: Path) -> Iterator[GivenSilo]:
    found = GivenSilo(tmp_path, small_graph(nodes=120))
    yield found
    found.log.close()


FRESH = {
    "node": "worker",
    "features": [0.5, 1.0, -1.0, 0.25],
    "neighbours": [{"node": "node-0003", "weight": 2}, {"node": "node-0007"}],
    "label": "class-1",
}


def test_a_posted_node_is_answered_at_once_and_joins_the_shard(silo: GivenSilo) -> None:
    with pytest.raises(NotFoundError, match="got 1 unknown id of 1 node"):
        silo.label("worker")
    described = {name: value for name, value in FRESH.items() if name != "label"}
    asked = silo.label({**described, "node": None})
    assert silo.tell(FRESH).model_dump() == {"accepted": 1, "waiting": 0}
    found = silo.label("worker")
    assert found.probabilities == pytest.approx(asked.probabilities) and found.known_label == "class-1"
    assert {one.node for one in found.neighbours} == {"node-0003", "node-0007"}
    shard = silo.refresh()
    row = shard.rows["worker"]
    assert (
        shard.labels[row] == 1
        and shard.splits[row] == TRAIN
        and shard.dense_features[row].tolist() == FRESH["features"]
    )
    assert shard.adjacency[row, shard.rows["node-0003"]] == 2.0 and silo.store.read_all()[1] == {}
    again = silo.label("worker")
    assert again.known_label == "class-1" and again.probabilities == pytest.approx(found.probabilities, abs=0.1)


def test_what_was_told_outlives_the_process_and_reaches_another_one(silo: GivenSilo) -> None:
    others = silo.open(silo.shard)
    silo.tell(FRESH)
    assert others.answer(LabelsIn(nodes=("worker",))).results[0].known_label == "class-1"
    later = NodeStore(silo.folder)
    assert set(later.read_all()[1]) == {"worker"}
    later.close()


def test_a_neighbour_and_a_neighbour_s_neighbour_see_what_is_near_them(silo: GivenSilo) -> None:
    before = silo.label("node-0003")
    silo.tell(FRESH)
    after = silo.label("node-0003")
    assert after.probabilities != before.probabilities
    silo.tell({"node": "other", "features": [0, 0, 0, 1], "neighbours": [{"node": "worker"}]})
    found = silo.label("other")
    assert [one.node for one in found.neighbours] == ["worker"]
    silo.tell({"node": "worker", "features": [3, -3, 3, 3]})
    assert silo.label("other").probabilities != found.probabilities
    assert silo.label("node-0003").probabilities != after.probabilities


def test_the_latest_word_on_an_edge_counts_from_whichever_end(silo: GivenSilo) -> None:
    silo.tell(FRESH)
    silo.tell({"node": "node-0003", "neighbours": [{"node": "worker", "weight": 0}]})
    assert {one.node for one in silo.label("worker").neighbours} == {"node-0007"}
    silo.tell({"node": "worker", "neighbours": [{"node": "node-0003", "weight": 5}]})
    assert {one.node: one.weight for one in silo.label("worker").neighbours}["node-0003"] == 5.0
    neighbour = silo.shard.node_ids[int(silo.shard.adjacency[[3]].tocoo().coords[1][0])]
    silo.tell({"node": neighbour, "neighbours": [{"node": "node-0003", "weight": 0}]})
    shard = silo.refresh()
    assert shard.adjacency[shard.rows["node-0003"], shard.rows[neighbour]] == 0.0
    assert shard.adjacency[shard.rows["worker"], shard.rows["node-0003"]] == 5.0
    assert (shard.adjacency != shard.adjacency.T).nnz == 0


def test_labels_of_known_nodes_change_and_may_be_forgotten(silo: GivenSilo) -> None:
    unlabelled, labelled = silo.shard.node_ids[5], silo.shard.node_ids[2]
    silo.tell({"node": unlabelled, "label": "class-0"}, {"node": labelled, "label": None}, {"node": "node-0000"})
    assert silo.label(unlabelled).known_label == "class-0" and silo.label(labelled).known_label is None
    shard = silo.refresh()
    assert shard.splits[shard.rows[unlabelled]] == TRAIN and shard.splits[shard.rows[labelled]] == UNLABELLED
    assert shard.labels[shard.rows["node-0000"]] == silo.shard.labels[0]


def test_a_node_without_features_and_an_edge_to_nobody_wait(silo: GivenSilo) -> None:
    assert silo.tell({"node": "late", "neighbours": [{"node": "node-0001"}]}).waiting == 1
    silo.tell({"node": "node-0002", "neighbours": [{"node": "nobody"}]})
    shard = silo.refresh()
    assert "late" not in shard.rows and set(silo.store.read_all()[1]) == {"late", "node-0002"}
    silo.tell({"node": "late", "features": [1, 1, 1, 1]})
    shard = silo.refresh()
    assert shard.adjacency[shard.rows["late"], shard.rows["node-0001"]] == 1.0


def test_an_erased_node_is_gone_from_answers_at_once_and_from_every_file(silo: GivenSilo) -> None:
    gone = "node-0003"
    neighbour = silo.shard.node_ids[int(silo.shard.adjacency[[3]].tocoo().coords[1][0])]
    silo.tell(FRESH, {"node": gone, "label": "class-0"})
    receipt = silo.log.erase_node(gone)
    assert receipt.done_at is None and receipt.events == 2
    with pytest.raises(NotFoundError):
        silo.label(gone)
    assert gone not in {one.node for name in (neighbour, "worker") for one in silo.label(name).neighbours}
    shard = silo.refresh()
    assert gone not in shard.rows and len(shard.node_ids) == 120  # one gone, one new
    assert silo.log.read_erasure(receipt.receipt).done_at is not None
    assert not [path for path in silo.folder.rglob("*") if path.is_file() and gone.encode() in path.read_bytes()]
    silo.tell({"node": gone, "features": [1, 0, 0, 0]})
    assert silo.label(gone).known_label is None and silo.label(gone).neighbours == ()


def test_a_node_that_comes_back_before_the_refresh_keeps_what_is_later(silo: GivenSilo) -> None:
    silo.log.erase_node("node-0003")
    silo.tell({"node": "node-0003", "features": [1, 0, 0, 0], "neighbours": [{"node": "node-0009"}]})
    assert [one.node for one in silo.label("node-0003").neighbours] == ["node-0009"]
    shard = silo.refresh()
    row = shard.rows["node-0003"]
    assert shard.adjacency[[row]].nnz == 1 and shard.splits[row] == UNLABELLED


def test_what_the_silo_does_not_know_is_refused_without_being_quoted(silo: GivenSilo) -> None:
    for wrong in (
        {"node": "secret-id", "label": "secret-label"},
        {"node": "secret-id", "features": {"secret-column": 1.0}},
        {"node": "secret-id", "features": [1.0]},
    ):
        with pytest.raises(ProtocolError) as refused:
            silo.tell(wrong)
        assert "secret" not in str(refused.value)
    assert silo.store.read_all()[1] == {}


def test_one_batch_without_room_leaves_the_others_be(tmp_path: Path) -> None:
    store = NodeStore(tmp_path, most=2)
    events = [NodesIn.model_validate({"nodes": [{"node": f"n{number}"}]}).nodes[0] for number in range(3)]
    found = store.put_each([[(events[0], None)], [(events[1], None), (events[2], None)], [(events[1], None)]])
    assert found[0] == 1 and isinstance(found[1], ConflictError) and found[2] == 1
    assert set(store.read_all()[1]) == {"n0", "n1"}
    store.close()


def test_what_joined_at_once_differs_little_from_the_graph_compiled_anew(silo: GivenSilo) -> None:
    """The difference that the documents speak of: nodes further away follow with the refresh."""
    generator, told = np.random.default_rng(0), []
    for number in range(10):
        around = [{"node": silo.shard.node_ids[int(one)]} for one in generator.integers(120, size=4)]
        told.append({"node": f"new-{number}", "features": generator.normal(size=4).tolist(), "neighbours": around})
    silo.tell(*told)
    at_once = [silo.label(one["node"]).probabilities["class-1"] for one in told]
    silo.answers.served = None
    silo.refresh()
    anew = [silo.label(one["node"]).probabilities["class-1"] for one in told]
    assert np.abs(np.array(at_once) - np.array(anew)).mean() < 0.05


def test_a_node_at_one_end_of_most_edges_is_taken_up_and_answered_in_time(tmp_path: Path) -> None:
    silo = GivenSilo(tmp_path, small_graph())
    leaves = [f"leaf-{number}" for number in range(6000)]
    for first in range(0, len(leaves), 1000):
        silo.tell(*({"node": leaf, "features": [1, 0, 0, 0], "neighbours": [{"node": "hub"}]} for leaf in
                    leaves[first : first + 1000]))  # fmt: skip
    silo.tell({"node": "hub", "features": [0, 1, 0, 0]})
    begun = time.process_time()
    silo.open(silo.shard)
    opened = time.process_time() - begun
    once = silo.label("hub")
    begun = time.process_time()
    asked = LabelsIn.model_validate({"nodes": ["hub"] * 1000})
    answered = silo.answers.answer(asked)
    assert set(map(id, answered.results)) == {id(answered.results[0])} and answered.results[0] == once
    assert time.process_time() - begun < 10.0 and opened < 10.0
    assert silo.answers.count_edges(LabelsIn.model_validate({"nodes": ["hub"]})) == 6000, "a thread answers"
    with pytest.raises(ProtocolError, match="ask for fewer nodes at once"):
        silo.label(*[{"node": "hub"}] * 17)
    assert silo.answers.overlay.links("hub").keys() == set(leaves)


def test_edges_to_nodes_of_which_much_is_known_are_taken_in_time_and_many_are_refused(tmp_path: Path) -> None:
    silo = GivenSilo(tmp_path, small_graph())
    others = [f"other-{number}" for number in range(9000)]
    for hub in ("hub-0", "hub-1"):
        silo.tell({"node": hub, "features": [0, 1, 0, 0], "neighbours": [{"node": one} for one in others]})
    begun = time.process_time()
    ends = [{"node": "hub-0", "weight": 2.0}, {"node": "hub-1", "weight": 0.0}]
    silo.tell(*({"node": one, "neighbours": ends} for one in others[:500]))
    assert time.process_time() - begun < 5.0
    links = silo.answers.overlay.links
    assert links("hub-0")[others[0]] == 2.0 == links(others[0])["hub-0"] and links("hub-0")[others[-1]] == 1.0
    assert links(others[0])["hub-1"] == 0.0
    many = [{"node": f"n{place}", "neighbours": [{"node": "x"}] * 7000} for place in range(3)]
    with pytest.raises(ValueError, match="at most 20,000 neighbours"):
        NodesIn.model_validate({"nodes": many})
    with pytest.raises(ValueError, match="at most 20,000 neighbours"):
        LabelsIn.model_validate({"nodes": many})
