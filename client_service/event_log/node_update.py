"""Merges the log of nodes into a shard: nodes, features, edges, labels, erasures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

from client_service.data.files import drop_staged, lock_folder
from client_service.data.foreign_edges import build_foreign_edges
from client_service.data.ids import find_row
from client_service.data.node_files import load_node_shard
from client_service.data.node_graphs import (
    TRAIN,
    UNKNOWN,
    UNLABELLED,
    Float32,
    Int64,
    NodeShard,
    build_adjacency,
    sort_entries,
)
from client_service.event_log.log_store import MergeResult
from client_service.event_log.node_store import NodeFacts, NodeStore
from shared.errors import DataError


@contextmanager
def lock_node_shard(folder: Path) -> Iterator[NodeShard]:
    """Loads the shard in `folder` and keeps other processes from changing it.

    DataError if another process changes it.
    """
    with lock_folder(folder):
        drop_staged(folder)
        yield load_node_shard(folder)


def merge_nodes_into_shard(before: NodeShard, store: NodeStore) -> MergeResult[NodeShard]:
    """Merges posted nodes into a shard, and returns the next one, unwritten.

    The log stays: see `NodeStore.delete_absorbed`.

    Erased nodes go first, so that one that has come back keeps what is later. A new node without features waits in the
    log, and so does an edge to a node that is nowhere. A node whose label was not known is for training from now on;
    one that is for validation or test stays so. Done again before the log is forgotten, it changes nothing.
    DataError if no node would be left.
    """
    batch = store.begin_merge()
    gone = [row for row, node in enumerate(before.node_ids) if batch.snapshot.erased and batch.snapshot.erases(node)]
    left = _drop_nodes(before, np.array(gone, dtype=np.int64)) if gone else before
    new = [
        node for node, facts in batch.facts.items() if facts.features is not None and find_row(left.rows, node) is None
    ]
    after = _merge_facts(_add_nodes(left, new), batch.facts)
    waiting = [node for node, facts in batch.facts.items() if _waits(after, node, facts)]
    if after.digest == before.digest:
        after = before
    else:
        store.add_stale_shards(before.digest, after.digest)
    return MergeResult(before, after, batch, waiting, len(waiting), 0, len(gone))


def _waits(shard: NodeShard, node: str, facts: NodeFacts) -> bool:
    known = find_row(shard.rows, node) is not None
    edges = facts.neighbours.items()
    return not known or any(weight > 0 and find_row(shard.rows, other) is None for other, weight in edges)


def _drop_nodes(shard: NodeShard, gone: Int64) -> NodeShard:
    """Removes rows with all of their edges, foreign ones too."""
    kept = np.setdiff1d(np.arange(len(shard.node_ids)), gone)
    if not len(kept):
        raise DataError(f"shard {shard.name!r}: expected at least one node that is not erased, got none")
    return _take_rows(shard, kept)


def _take_rows(shard: NodeShard, kept: Int64) -> NodeShard:
    foreign = shard.foreign
    if foreign is not None:
        entries = sparse.coo_array(foreign.weights[kept])
        ids = [foreign.ids[column] for column in entries.col.tolist()]
        foreign = build_foreign_edges(entries.row.astype(np.int64), ids, entries.data, len(kept))
    return replace(
        shard,
        node_ids=tuple(shard.node_ids[row] for row in kept),
        features=sort_entries(sparse.csr_array(shard.features[kept])),
        adjacency=sort_entries(sparse.csr_array(shard.adjacency[kept][:, kept])),
        labels=shard.labels[kept],
        splits=shard.splits[kept],
        foreign=foreign,
        borders=None,  # sums of foreign neighbours are learnt anew for the graph as it is now
    )


def _add_nodes(shard: NodeShard, new: list[str]) -> NodeShard:
    """Adds nodes without features, edges and labels."""
    if not new:
        return shard
    ids = np.array([*shard.node_ids, *new], dtype=object)
    order, more = np.argsort(ids, kind="stable"), len(new)
    columns = len(shard.feature_names)
    features = sparse.vstack([shard.features, sparse.csr_array((more, columns), dtype=np.float32)], format="csr")
    edges = sparse.block_diag([shard.adjacency, sparse.csr_array((more, more), dtype=np.float32)], format="csr")
    foreign = shard.foreign
    if foreign is not None:
        entries, places = sparse.coo_array(foreign.weights), np.argsort(order)
        outside = [foreign.ids[column] for column in entries.col.tolist()]
        foreign = build_foreign_edges(places[entries.row].astype(np.int64), outside, entries.data, len(ids))
    return replace(
        shard,
        node_ids=tuple(ids[order].tolist()),
        features=sort_entries(sparse.csr_array(features)[order]),
        adjacency=sort_entries(sparse.csr_array(sparse.csr_array(edges)[order][:, order])),
        labels=np.append(shard.labels, np.full(more, UNKNOWN))[order].astype(np.int64),
        splits=np.append(shard.splits, np.full(more, UNLABELLED))[order].astype(np.int8),
        foreign=foreign,
        borders=None,
    )


def _merge_facts(shard: NodeShard, posted: Mapping[str, NodeFacts]) -> NodeShard:
    """Merges posted features, edges and labels of the shard's nodes."""
    rows = {row: facts for node, facts in posted.items() if (row := find_row(shard.rows, node)) is not None}
    if not rows:
        return shard
    labels, splits, places = shard.labels.copy(), shard.splits.copy(), {c: n for n, c in enumerate(shard.classes)}
    for row, facts in rows.items():
        if facts.labelled:
            labels[row] = UNKNOWN if facts.label is None else places[facts.label]
            if facts.label is None:
                splits[row] = UNLABELLED
            elif splits[row] == UNLABELLED:
                splits[row] = TRAIN
    adjacency = _merge_edges(shard, rows)
    changed = {row: facts.features for row, facts in rows.items() if facts.features is not None}
    features = _merge_features(shard, changed)
    borders = shard.borders if not changed and adjacency is shard.adjacency else None
    return replace(shard, features=features, adjacency=adjacency, labels=labels, splits=splits, borders=borders)


def _merge_features(shard: NodeShard, posted: Mapping[int, Mapping[str, float]]) -> sparse.csr_array:
    if not posted:
        return shard.features
    columns = {name: place for place, name in enumerate(shard.feature_names)}
    kept = np.ones(len(shard.node_ids), dtype=np.float32)
    kept[list(posted)] = 0.0
    entries = [(row, columns[name], value) for row, given in posted.items() for name, value in given.items()]
    places = np.array([(row, column) for row, column, _ in entries], dtype=np.int64).reshape(-1, 2)
    values = np.array([value for *_, value in entries], dtype=np.float32)
    added = sparse.coo_array((values, (places[:, 0], places[:, 1])), shape=shard.features.shape)
    found = sparse.csr_array(sparse.diags_array(kept) @ shard.features + added)
    found.eliminate_zeros()
    return sort_entries(found)


def _merge_edges(shard: NodeShard, posted: Mapping[int, NodeFacts]) -> sparse.csr_array:
    changed: dict[tuple[int, int], float] = {}
    for row, facts in posted.items():
        for other, weight in facts.neighbours.items():
            if (place := find_row(shard.rows, other)) is not None and place != row:
                changed[min(row, place), max(row, place)] = weight
    if not changed:
        return shard.adjacency
    sources, targets, weights = shard.list_edges()
    count = len(shard.node_ids)
    keys = np.array([low * count + high for low, high in changed], dtype=np.int64)
    kept = ~np.isin(sources * count + targets, keys)
    there = np.array(list(changed.values()), dtype=np.float32)
    lows, highs = keys[there > 0] // count, keys[there > 0] % count
    values: Float32 = np.concatenate([weights[kept], there[there > 0]]).astype(np.float32)
    return build_adjacency(np.append(sources[kept], lows), np.append(targets[kept], highs), values, count)
