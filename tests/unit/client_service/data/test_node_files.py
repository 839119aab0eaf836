"""Shards of nodes: written, read again, and refused where their files do not fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from client_service.data.node_files import EDGES, FEATURES, HEAD, NODES, load_node_shard, save_node_shard
from client_service.data.node_graphs import (
    TEST,
    TRAIN,
    UNKNOWN,
    UNLABELLED,
    VALID,
    NodeShard,
    build_adjacency,
    sort_entries,
)
from shared.errors import DataError


def make_shard() -> NodeShard:
    features = sort_entries(sparse.csr_array(np.array([[1, 0], [0, 2], [0, 0], [3, 4]], np.float32)))
    edges = build_adjacency(np.array([0, 1, 0]), np.array([1, 2, 0]), np.array([1, 2, 5], np.float32), 4)
    labels, splits = np.array([0, 1, UNKNOWN, 1]), np.array([TRAIN, VALID, UNLABELLED, TEST], np.int8)
    return NodeShard("bank", ("a", "b", "ç", "日"), features, ("x", "y"), edges, labels, ("bad", "good"), splits)


def test_files_give_the_same_shard(tmp_path: Path) -> None:
    shard = make_shard()
    save_node_shard(tmp_path, shard)
    read = load_node_shard(tmp_path)
    assert read.digest == shard.digest
    assert (read.name, tuple(read.node_ids), tuple(read.classes)) == ("bank", shard.node_ids, shard.classes)
    assert (read.adjacency != shard.adjacency).nnz == 0
    assert (read.features != shard.features).nnz == 0


def test_edges_are_symmetric_and_counted_once() -> None:
    found = build_adjacency(np.array([0, 1, 2, 2]), np.array([1, 0, 2, 0]), np.array([1, 3, 9, 2], np.float32), 3)
    assert found.toarray().tolist() == [[0, 3, 2], [3, 0, 0], [2, 0, 0]]


def test_homophily_counts_edges_of_known_labels() -> None:
    shard = make_shard()
    assert shard.edges == 2
    assert shard.edge_homophily() == 0.0
    assert shard.edge_homophily(shard.nodes_of(TRAIN)) is None


def test_digest_follows_content_alone() -> None:
    shard = make_shard()
    assert replace(shard, name="other").digest == shard.digest
    assert replace(shard, labels=np.array([1, 1, UNKNOWN, 1])).digest != shard.digest
    assert replace(shard, classes=("bad", "fine")).columns_digest != shard.columns_digest


@pytest.mark.parametrize(
    ("table", "change", "expected"),
    [
        (NODES, lambda t: t.with_columns(label=pl.lit("else")), "classes of the head"),
        (NODES, lambda t: t.with_columns(split=pl.lit("train")), "expected nodes without a label"),
        (NODES, lambda t: pl.concat([t, t]), "expected each node once"),
        (NODES, lambda t: t.drop("label"), "expected a column 'label'"),
        (EDGES, lambda t: t.with_columns(source=pl.lit("zz")), "expected ends of edges"),
        (EDGES, lambda t: t.with_columns(weight=pl.lit(-1.0)), "expected finite weights above 0"),
        (EDGES, lambda t: t.head(1), "expected edges"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, table: str, change: object, expected: str) -> None:
    save_node_shard(tmp_path, make_shard())
    change(pl.read_parquet(tmp_path / table)).write_parquet(tmp_path / table)  # type: ignore[operator]
    with pytest.raises(DataError, match=expected) as raised:
        load_node_shard(tmp_path)
    assert "日" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04"])
def test_broken_features_are_refused(tmp_path: Path, content: bytes) -> None:
    save_node_shard(tmp_path, make_shard())
    (tmp_path / FEATURES).write_bytes(content)
    with pytest.raises(DataError, match="expected features as a sparse matrix"):
        load_node_shard(tmp_path)


def test_a_head_of_another_kind_is_refused(tmp_path: Path) -> None:
    save_node_shard(tmp_path, make_shard())
    (tmp_path / HEAD).write_text('{"format": "lpsfed-sessions/1"}')
    with pytest.raises(DataError, match="expected a shard of nodes"):
        load_node_shard(tmp_path)
