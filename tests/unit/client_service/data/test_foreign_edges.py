"""Edges to nodes of other silos: built, kept in a shard's files, and refused where they are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from client_service.data.foreign_edges import ForeignEdges, build_foreign_edges, read_foreign_edges
from client_service.data.node_files import FOREIGN, load_node_shard, save_node_shard
from client_service.data.node_graphs import NodeShard, build_adjacency, sort_entries
from shared.errors import DataError


def make_shard() -> NodeShard:
    features = sort_entries(sparse.csr_array(np.eye(3, dtype=np.float32)))
    edges = build_adjacency(np.array([0]), np.array([1]), np.array([2], np.float32), 3)
    foreign = build_foreign_edges(np.array([2, 0, 2]), ["z", "é", "é"], np.array([1, 2, 3], np.float32), 3)
    labels, splits = np.array([0, 1, 0]), np.array([0, 1, 2], np.int8)
    return NodeShard("bank", ("a", "b", "c"), features, ("x", "y", "v"), edges, labels, ("n", "p"), splits, (), foreign)


def test_of_an_edge_given_twice_the_largest_weight_stays() -> None:
    found = build_foreign_edges(np.array([1, 1, 0]), ["u", "u", "v"], np.array([1, 7, 2], np.float32), 2)
    assert found is not None and tuple(found.ids) == ("u", "v")
    assert found.weights.toarray().tolist() == [[0, 2], [7, 0]]
    assert found.degrees.tolist() == [2, 7] and found.counts.tolist() == [1, 1]
    assert build_foreign_edges(np.array([], np.int64), [], np.array([], np.float32), 2) is None


def test_files_keep_foreign_edges_and_the_digest_tells_of_them(tmp_path: Path) -> None:
    shard = make_shard()
    save_node_shard(tmp_path, shard)
    read = load_node_shard(tmp_path)
    assert read.digest == shard.digest != replace(shard, foreign=None).digest
    assert isinstance(read.foreign, ForeignEdges) and tuple(read.foreign.ids) == ("z", "é")
    save_node_shard(tmp_path, replace(shard, foreign=None))
    assert load_node_shard(tmp_path).foreign is None, "what an earlier shard had is not read"


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("node", "unknown", r"expected nodes of the shard in column 'node', got 1 others"),
        ("foreign", "b", r"expected nodes of other silos in column 'foreign', got 1 of the shard's own"),
        ("weight", float("nan"), r"expected finite weights above 0, got 1 others"),
        ("weight", -1.0, r"expected finite weights above 0, got 1 others"),
    ],
)
def test_tables_that_are_none_are_refused_without_ids(column: str, value: object, message: str) -> None:
    row = {"node": "a", "foreign": "z", "weight": 1.0} | {column: value}
    with pytest.raises(DataError, match=message):
        read_foreign_edges(pl.DataFrame([row]), pl.Series(["a", "b"]), Path(FOREIGN))
