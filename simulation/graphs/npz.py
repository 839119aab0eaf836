"""Reads graphs in the `.npz` files of Planetoid and of Platonov et al. (2023).

DataError with the file, never a label.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

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
from shared.errors import DataError, SettingsError
from simulation.datasets.content import file_stem

MOST_CLASSES = 100  # of labels; more are taken for another column
MOST_FEATURES = 1 << 20
LARGEST = 1e30  # of a feature, and of the weight of an edge: float32 has room for sums of them
NO_ARRAYS = (OSError, ValueError, LookupError, TypeError, EOFError, MemoryError, BadZipFile, zlib.error)
"""Errors that numpy raises for files that are no arrays, are damaged, or say that they are larger than memory."""


def read_npz(path: Path, official: int | None = None) -> NodeShard:
    """Reads a graph of Planetoid, or a heterophilous one.

    Planetoid has features as CSR, `y` and `train_idx`, the other `node_features` and ten masks.
    """
    try:
        # a stream of our own, because numpy leaves the file of a damaged one open
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        planetoid = "x_data" in arrays
        labels = np.asarray(arrays["y" if planetoid else "node_labels"]).reshape(-1)
        if planetoid:
            parts = tuple(arrays[name] for name in ("x_data", "x_indices", "x_indptr"))
            features = sparse.csr_array(parts, shape=tuple(arrays["x_shape"]), dtype=np.float32)
        else:
            given = arrays["node_features"].reshape(len(labels), -1)
            features = sparse.csr_array(given.astype(np.float32, casting="same_kind", copy=False))
        features.check_format(full_check=True)
        features.sum_duplicates()
        labels = np.where(np.isfinite(labels), labels, UNKNOWN).astype(np.int64)
        edges = arrays["edges"].astype(np.int64).reshape(-1, 2)
    except NO_ARRAYS:
        keys = "edges and either x_data, x_indices, x_indptr, x_shape, y or node_features, node_labels"
        raise DataError(f"{path}: expected the arrays {keys}, got something else") from None
    nodes, columns = features.shape
    if not nodes or len(labels) != nodes or (len(edges) and not (edges.min() >= 0 and edges.max() < nodes)):
        raise DataError(f"{path}: expected a label for each of {nodes:,} nodes, and edges between these, got others")
    if not 1 <= columns <= MOST_FEATURES or int(labels.max()) >= MOST_CLASSES:
        sizes = f"{columns:,} features and labels up to {int(labels.max()):,}"
        raise DataError(
            f"{path}: expected 1 to {MOST_FEATURES:,} features, and labels from 0 to {MOST_CLASSES - 1}, got {sizes}"
        )
    if not (np.abs(features.data) <= LARGEST).all():
        raise DataError(f"{path}: expected features up to {LARGEST:g}, got others: use another unit")
    digits = len(str(max(nodes - 1, 0)))
    splits = np.full(nodes, TRAIN, np.int8) if official is None else _read_official_split(path, arrays, nodes, official)
    labels = np.where(splits == UNLABELLED, UNKNOWN, np.maximum(labels, UNKNOWN))
    weights = np.ones(len(edges), np.float32)
    return NodeShard(
        file_stem(path),
        tuple(f"{number:0{digits}d}" for number in range(nodes)),
        sort_entries(features),
        tuple(f"feature-{number}" for number in range(features.shape[1])),
        build_adjacency(edges[:, 0], edges[:, 1], weights, nodes),
        labels,
        tuple(str(number) for number in range(max(2, int(labels.max(initial=0)) + 1))),
        np.where(labels == UNKNOWN, UNLABELLED, splits).astype(np.int8),
        notes=() if official is None else (f"split {official} of those that come with the data",),
    )


def _read_official_split(path: Path, arrays: Mapping[str, Any], nodes: int, number: int) -> NDArray[np.int8]:
    """Reads one of the file's own splits.

    A node that is in no part of the split counts as one without a label.
    """
    masks = "train_masks" in arrays
    names = ("train_masks", "val_masks", "test_masks") if masks else ("train_idx", "val_idx", "test_idx")
    parts = [arrays[name] for name in names if name in arrays]
    if len(parts) < len(names):
        raise DataError(f"{path}: expected the arrays {', '.join(names)} of a split, got {len(parts)} of them")
    if any(
        part.dtype != bool or part.shape[1:] != (nodes,)
        if masks
        else part.dtype.kind not in "iu" or (part < 0).any() or (part >= nodes).any()
        for part in parts
    ):
        words = "masks of a row for each split" if masks else "rows of nodes"
        raise DataError(f"{path}: expected in {', '.join(names)} {words} over {nodes:,} nodes, got others")
    count = min(map(len, parts)) if masks else 1
    if not 0 <= number < count:
        raise SettingsError(f"official split: expected one of 0 to {count - 1} of {path.name}, got {number}")
    found = np.full(nodes, UNLABELLED, np.int8)
    for part, split in zip(parts, (TRAIN, VALID, TEST), strict=True):
        found[part[number] if masks else part] = split
    return found
