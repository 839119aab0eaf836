"""Cuts of a node graph: each node in one silo, the share of edges kept is said, splits are each silo's own."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from client_service.data.foreign_edges import build_foreign_edges
from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, UNLABELLED, VALID, NodeShard, build_adjacency
from shared.errors import SettingsError
from simulation.graphs.cut import (
    CUTS,
    cut_graph,
    divide_graph,
    draw_splits,
    draw_stratified_splits,
    select_nodes,
    share_of_kept_edges,
)

METIS = pytest.mark.skipif(importlib.util.find_spec("pymetis") is None, reason="pymetis is an extra")


def make_blocks(blocks: int = 4, size: int = 25, seed: int = 0, unknown: int = 3) -> NodeShard:
    """Dense blocks with an edge from each to the next."""
    rng = np.random.default_rng(seed)
    nodes = blocks * size
    owners = np.arange(nodes) // size
    upper = np.triu((rng.random((nodes, nodes)) < 0.4) & (owners[:, None] == owners), 1)
    for block in range(blocks - 1):
        upper[(block + 1) * size - 1, (block + 1) * size] = True
    sources, targets = np.nonzero(upper)
    labels = (owners % 2).astype(np.int64)
    labels[:unknown] = UNKNOWN
    splits = np.where(labels == UNKNOWN, UNLABELLED, TRAIN).astype(np.int8)
    ids = tuple(f"n{number:03d}" for number in range(nodes))
    features = sparse.csr_array(rng.normal(size=(nodes, 2)).astype(np.float32))
    adjacency = build_adjacency(sources, targets, np.ones(len(sources), np.float32), nodes)
    return NodeShard("blocks", ids, features, ("x", "y"), adjacency, labels, ("0", "1"), splits)


@pytest.mark.parametrize("method", [pytest.param("metis", marks=METIS), "growth", "random"])
def test_each_node_is_in_one_silo_and_silos_are_of_equal_size(method: str) -> None:
    graph = make_blocks()
    cut = cut_graph(graph, 4, 0, method)
    assert np.sort(np.concatenate(cut.nodes)).tolist() == list(range(100))
    assert max(map(len, cut.nodes)) - min(map(len, cut.nodes)) <= 4
    shards = divide_graph(graph, cut)
    kept = sum(shard.edges for shard in shards) / graph.edges
    assert cut.kept == pytest.approx(kept) == share_of_kept_edges(graph, cut.nodes)
    assert {"metis": 0.9, "growth": 0.6, "random": 0.1}[method] < kept < {"random": 0.5}.get(method, 1.0)
    assert all(f"cut by {method} into 4 silos: {kept:.1%} of the edges kept" in shard.notes for shard in shards)
    outer = sum(0 if shard.foreign is None else shard.foreign.weights.nnz for shard in shards)
    assert outer == 2 * (graph.edges - sum(shard.edges for shard in shards))  # each end knows its partner's id
    again = divide_graph(graph, cut_graph(graph, 4, 0, method))
    assert [shard.digest for shard in shards] == [shard.digest for shard in again]


@METIS
def test_each_seed_is_another_cut() -> None:
    adjacency = make_blocks(8, 40).adjacency
    cuts = [tuple(CUTS["metis"](adjacency, 5, seed).tolist()) for seed in range(3)]
    assert len(set(cuts)) == 3


def test_growth_takes_isolated_nodes_and_single_nodes() -> None:
    graph = make_blocks(1, 7)
    empty = build_adjacency(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32), 7)
    assert np.bincount(CUTS["growth"](empty, 3, 0)).tolist() == [3, 2, 2]
    assert np.bincount(CUTS["growth"](graph.adjacency, 7, 0)).tolist() == [1] * 7
    with pytest.raises(SettingsError, match="at most 7"):
        cut_graph(graph, 8, 0)


def test_overlapping_silos_are_half_samples_and_share_one_split() -> None:
    graph = make_blocks()
    cut = cut_graph(graph, 10, 0, "overlapping")
    assert [len(one) for one in cut.nodes] == [25] * 10
    shards = divide_graph(graph, cut)
    splits: dict[str, set[int]] = {}
    for shard in shards:
        for node, split in zip(shard.node_ids, shard.splits.tolist(), strict=True):
            splits.setdefault(node, set()).add(split)
    assert all(len(found) == 1 for found in splits.values())  # none trains on another's test node
    with pytest.raises(SettingsError, match="multiple of 5"):
        cut_graph(graph, 7, 0, "overlapping")
    with pytest.raises(SettingsError, match="expected one of metis"):
        cut_graph(graph, 2, 0, "spectral")


def test_splits_are_drawn_of_labelled_nodes_alone() -> None:
    graph = make_blocks(unknown=10)
    found = draw_splits(graph.labels, 3)
    assert np.bincount(found).tolist() == [18, 36, 36, 10]
    assert (found[:10] == UNLABELLED).all()
    assert found.tolist() == draw_splits(graph.labels, 3).tolist() != draw_splits(graph.labels, 4).tolist()
    assert draw_splits(np.array([UNKNOWN, 1]), 0).tolist() == [UNLABELLED, TRAIN]
    assert draw_splits(np.array([UNKNOWN]), 0).tolist() == [UNLABELLED]
    own = divide_graph(graph, cut_graph(graph, 2, 0, "growth"), split_seed=None)
    assert {TRAIN, UNLABELLED} == {int(split) for shard in own for split in shard.splits}
    drawn = divide_graph(graph, cut_graph(graph, 2, 0, "growth"), split_seed=5)
    assert {TRAIN, VALID, TEST} <= {int(split) for split in drawn[0].splits}


def test_a_stratified_draw_has_each_class_for_training_first_and_then_for_validation() -> None:
    shares = (0.6, 0.2, 0.2)
    labels = np.repeat([UNKNOWN, 0, 1], [10, 100, 15])
    found = draw_stratified_splits(labels, 3, shares)
    assert np.bincount(found[labels == 0]).tolist() == [60, 20, 20]
    assert np.bincount(found[labels == 1]).tolist() == [9, 3, 3]
    assert (found[labels == UNKNOWN] == UNLABELLED).all()
    assert found.tolist() == draw_stratified_splits(labels, 3, shares).tolist()
    assert found.tolist() != draw_stratified_splits(labels, 4, shares).tolist()
    few = {1: [1], 2: [1, 1], 3: [2, 1], 4: [2, 1, 1], 5: [3, 1, 1]}
    for count, expected in few.items():
        assert np.bincount(draw_stratified_splits(np.zeros(count, np.int64), 0, shares)).tolist() == expected
    assert draw_stratified_splits(np.array([UNKNOWN]), 0, shares).tolist() == [UNLABELLED]


def test_without_pymetis_growth_is_usual_and_metis_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    assert cut_graph(make_blocks(), 2, 0).method == "growth"
    with pytest.raises(SettingsError, match="pip install pymetis"):
        cut_graph(make_blocks(), 2, 0, "metis")


def test_edges_that_are_foreign_to_the_whole_graph_stay_foreign_in_each_silo() -> None:
    whole = make_blocks(1, 12)
    outer = build_foreign_edges(np.array([0, 5, 5]), ["x", "x", "y"], np.array([1, 2, 3], np.float32), 12)
    shard = select_nodes(replace(whole, foreign=outer), "one", np.array([1, 5, 7]))
    assert shard.foreign is not None
    kept = shard.foreign.list_edges(shard.node_ids).filter(pl.col("foreign").is_in(["x", "y"]))
    assert kept.rows() == [(whole.node_ids[5], "x", 2.0), (whole.node_ids[5], "y", 3.0)]
