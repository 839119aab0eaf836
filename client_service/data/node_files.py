"""Reads and writes the files of a NodeShard.

No message of this module contains a node's id.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy import sparse

from client_service.data.events import id_column, row_numbers
from client_service.data.files import commit_files, current_file, read_bytes
from client_service.data.foreign_edges import read_foreign_edges
from client_service.data.node_graphs import (
    SPLITS,
    UNKNOWN,
    UNLABELLED,
    Int64,
    NodeShard,
    build_adjacency,
    sort_entries,
)
from client_service.data.shard_head import read_head_fields
from client_service.data.tables import read_table
from shared.errors import DataError
from shared.faults import describe_fault
from shared.message import Message

NODES, EDGES, FEATURES, HEAD = "nodes.parquet", "edges.parquet", "features.safetensors", "shard.json"
FOREIGN = "foreign.parquet"  # edges to nodes of other silos, where there are any
FORMAT: Literal["lpsfed-nodes/1"] = "lpsfed-nodes/1"
NO_FOREIGN = {"node": pl.String, "foreign": pl.String, "weight": pl.Float32}
MOST_COLUMNS = 1 << 20
MOST_CLASSES = 1 << 10
ARRAYS = ("data", "indices", "indptr")


class NodeShardHead(Message):
    """Head of a shard of nodes: sizes, names of columns and classes, digest."""

    format: Literal["lpsfed-nodes/1"] = FORMAT
    name: str = Field(min_length=1, max_length=200)
    nodes: int = Field(ge=1)
    edges: int = Field(ge=0)
    foreign_edges: int = Field(0, ge=0, exclude_if=lambda edges: edges == 0)
    features: tuple[str, ...] = Field(max_length=MOST_COLUMNS)
    classes: tuple[str, ...] = Field(min_length=2, max_length=MOST_CLASSES)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    notes: tuple[str, ...] = ()


def describe_node_head(shard: NodeShard) -> NodeShardHead:
    """Builds the head of a shard."""
    return NodeShardHead(
        name=shard.name,
        nodes=len(shard.node_ids),
        edges=shard.edges,
        foreign_edges=0 if shard.foreign is None else int(shard.foreign.weights.nnz),
        features=tuple(shard.feature_names),
        classes=tuple(shard.classes),
        digest=shard.digest,
        notes=shard.notes,
    )


def save_node_shard(folder: Path, shard: NodeShard) -> NodeShardHead:
    """Writes the shard into the folder, whole or not at all."""
    head = describe_node_head(shard)
    ids = pl.Series(shard.node_ids, dtype=pl.String)
    labels = [None if label == UNKNOWN else shard.classes[label] for label in shard.labels.tolist()]
    nodes = pl.DataFrame(
        {"node": ids, "label": labels, "split": pl.Series(SPLITS, dtype=pl.String).gather(shard.splits)},
        schema={"node": pl.String, "label": pl.String, "split": pl.String},
    )
    sources, targets, weights = shard.list_edges()
    edges = pl.DataFrame({"source": ids.gather(sources), "target": ids.gather(targets), "weight": weights})
    text = head.model_dump_json(indent=2) + "\n"
    files = {
        NODES: _parquet(nodes),
        EDGES: _parquet(edges),
        FEATURES: _encode_features(shard.features),
        HEAD: text.encode(),
    }
    if shard.foreign is not None:
        files[FOREIGN] = _parquet(shard.foreign.list_edges(shard.node_ids))
    elif current_file(folder, FOREIGN).exists():  # of the shard before, whose nodes may have been erased
        files[FOREIGN] = _parquet(pl.DataFrame(schema=NO_FOREIGN))
    commit_files(folder, files)
    return head


def load_node_shard(folder: Path) -> NodeShard:
    """Reads the shard in a folder: nodes.parquet, edges.parquet, features.safetensors and shard.json.

    DataError that names the file, what was expected and what came; also where sizes or digest are not as the head says.
    """
    head_path = current_file(folder, HEAD)
    head = _read_head(head_path)
    path = current_file(folder, NODES)
    table = read_table(path)
    ids = id_column(table, "node", path, exact=True)
    order = ids.arg_sort()
    ids = ids.gather(order)
    if (again := len(ids) - ids.n_unique()) > 0:
        raise DataError(f"{path}: expected each node once, got {again} again")
    labels = _read_labels(table, head.classes, path)[order.to_numpy()]
    splits = _read_splits(table, labels, order.to_numpy(), path)
    edges_path, features_path = current_file(folder, EDGES), current_file(folder, FEATURES)
    features = _read_features(features_path, len(ids), len(head.features))
    adjacency = read_edges(read_table(edges_path), ids, edges_path)
    foreign = None
    if head.foreign_edges:
        foreign_path = current_file(folder, FOREIGN)
        foreign = read_foreign_edges(read_table(foreign_path), ids, foreign_path)
    shard = NodeShard(
        head.name,
        tuple(ids),
        sort_entries(features[order.to_numpy()]),
        head.features,
        adjacency,
        labels,
        head.classes,
        splits,
        head.notes,
        foreign,
    )
    derived = describe_node_head(shard)
    for field in ("nodes", "edges", "foreign_edges", "digest"):
        if (expected := getattr(head, field)) != (observed := getattr(derived, field)):
            raise DataError(f"{head_path}: expected {field} {expected} as the head says, the files have {observed}")
    return shard


def read_edges(table: pl.DataFrame, ids: pl.Series, path: Path) -> sparse.csr_array:
    """Reads edges as a symmetric matrix of weights over sorted ids.

    The table has columns source, target and, where edges have weights, weight.

    DataError for an end that is not in `ids`, and for a weight that is not a finite number above 0.
    """
    rows = [row_numbers(id_column(table, name, path, exact=True), ids) for name in ("source", "target")]
    if strange := int(sum((one < 0).sum() for one in rows)):
        raise DataError(f"{path}: expected ends of edges that are nodes of the shard, got {strange} others")
    weights = np.ones(len(table), np.float32)
    if "weight" in table.columns:
        column = table["weight"].cast(pl.Float32, strict=False).fill_null(float("nan"))
        weights = column.to_numpy().astype(np.float32)
    if wrong := int((~(np.isfinite(weights) & (weights > 0))).sum()):
        raise DataError(f"{path}: expected finite weights above 0, got {wrong} others")
    return build_adjacency(rows[0], rows[1], weights, len(ids))


def _read_labels(table: pl.DataFrame, classes: tuple[str, ...], path: Path) -> Int64:
    if "label" not in table.columns:
        raise DataError(f"{path}: expected a column 'label', got none")
    words = table["label"].cast(pl.String)
    places = {word: place for place, word in enumerate(classes)}
    found = np.array([UNKNOWN if word is None else places.get(word, -2) for word in words], dtype=np.int64)
    if strange := int((found == -2).sum()):
        raise DataError(f"{path}: expected labels of the {len(classes)} classes of the head, got {strange} others")
    return found


def _read_splits(table: pl.DataFrame, labels: Int64, order: Int64, path: Path) -> NDArray[np.int8]:
    words = id_column(table, "split", path)
    places = {word: place for place, word in enumerate(SPLITS)}
    found = np.array([places.get(word, -1) for word in words], dtype=np.int8)[order]
    if strange := int((found < 0).sum()):
        raise DataError(f"{path}: expected {', '.join(SPLITS)} in column 'split', got others in {strange} rows")
    if wrong := int(((labels == UNKNOWN) != (found == UNLABELLED)).sum()):
        raise DataError(f"{path}: expected nodes without a label to be '{SPLITS[UNLABELLED]}', got {wrong} otherwise")
    return found


def _read_head(path: Path) -> NodeShardHead:
    values = read_head_fields(path, (FORMAT,), "nodes")
    try:
        return NodeShardHead.model_validate(values)
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {describe_fault(e)}" for e in error.errors())
        raise DataError(f"{path}: expected the head of a shard of nodes, {fields}") from None


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def _encode_features(features: sparse.csr_array) -> bytes:
    arrays = {name: np.ascontiguousarray(getattr(features, name)) for name in ARRAYS}
    return save(arrays, {"columns": str(features.shape[1])})


def _read_features(path: Path, nodes: int, columns: int) -> sparse.csr_array:
    try:
        data, indices, starts = (load(read_bytes(path))[name] for name in ARRAYS)
        shape = (len(starts) - 1, columns)
        found = sparse.csr_array((data.astype(np.float32), indices, starts), shape=shape)
        found.check_format(full_check=True)
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise DataError(f"{path}: expected features as a sparse matrix, got something else") from None
    if found.shape != (nodes, columns):
        raise DataError(f"{path}: expected features of {nodes} nodes and {columns} columns, got {found.shape}")
    if not np.isfinite(found.data).all():
        raise DataError(f"{path}: expected finite features, got others")
    return found
