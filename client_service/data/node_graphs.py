"""Node graph of a silo: nodes with features, labels and splits, weighted edges."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.digests import encode_list
from client_service.data.foreign_edges import BorderSums, ForeignEdges
from client_service.data.id_columns import index_ids

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
TRAIN, VALID, TEST, UNLABELLED = 0, 1, 2, 3
SPLITS = ("train", "valid", "test", "unlabelled")
UNKNOWN = -1  # label of a node whose class is not known


def build_adjacency(sources: Int64, targets: Int64, weights: Float32, nodes: int) -> sparse.csr_array:
    """Builds a symmetric matrix of edge weights, (n, n), without self loops.

    An edge that is given several times, in either direction, has the largest of its weights.
    """
    kept = sources != targets
    low = np.minimum(sources, targets)[kept].astype(np.int64)
    high = np.maximum(sources, targets)[kept].astype(np.int64)
    order = np.lexsort((-weights[kept], high, low))
    low, high, values = low[order], high[order], weights[kept][order].astype(np.float32)
    first = np.ones(len(low), bool)
    first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    low, high, values = low[first], high[first], values[first]
    rows, columns = np.concatenate([low, high]), np.concatenate([high, low])
    found = sparse.coo_array((np.concatenate([values, values]), (rows, columns)), shape=(nodes, nodes))
    return sort_entries(sparse.csr_array(found))


def sort_entries(matrix: sparse.csr_array) -> sparse.csr_array:
    """Sorts the entries of each row by column, with 64-bit indices.

    Equal matrices have equal bytes then.
    """
    matrix.sort_indices()
    indices, starts = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    return sparse.csr_array((matrix.data.astype(np.float32), indices, starts), shape=matrix.shape)


@dataclass(frozen=True)
class NodeShard:
    """Node graph of one silo: n nodes with q features each, and c classes.

    Classes, and columns of features, are the same in all silos.

    node_ids: ascending, (n,). features: (n, q), float32. feature_names: (q,). adjacency: symmetric weights of edges
    between the silo's own nodes, above 0, without self loops, (n, n). labels: a row of `classes`, or UNKNOWN, (n,).
    splits: TRAIN, VALID or TEST of labelled nodes, UNLABELLED of the others, (n,). foreign: edges to nodes of other
    silos; None without any. borders: sums of these nodes' features, None if unknown; neither a digest nor a file of
    the shard contains them.
    """

    name: str
    node_ids: Sequence[str]
    features: sparse.csr_array
    feature_names: Sequence[str]
    adjacency: sparse.csr_array
    labels: Int64
    classes: Sequence[str]
    splits: NDArray[np.int8]
    notes: tuple[str, ...] = ()
    foreign: ForeignEdges | None = None
    borders: BorderSums | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all training data; the shard's name does not count."""
        total = hashlib.sha256()
        for names in (self.node_ids, self.feature_names, self.classes):
            total.update(encode_list(names) + b"\n")
        for matrix in (self.features, self.adjacency):
            for part, kind in ((matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f4")):
                total.update(np.ascontiguousarray(part, dtype=kind).data)
        for part in (self.labels, self.splits):
            total.update(np.ascontiguousarray(part, dtype="<i8").data)
        if self.foreign is not None:
            total.update(self.foreign.digest.encode())
        return total.hexdigest()

    @property
    def lists_digest(self) -> str:
        """Same as `digest`, which covers all data that answers depend on."""
        return self.digest

    @cached_property
    def columns_digest(self) -> str:
        """SHA-256 over the names of features and classes, which all silos must share."""
        return hashlib.sha256(encode_list(self.feature_names) + b"\n" + encode_list(self.classes)).hexdigest()

    @cached_property
    def rows(self) -> dict[str, int]:
        """Maps the id of each node to its row."""
        return index_ids(self.node_ids)

    @cached_property
    def dense_features(self) -> Float32:
        """Features as a dense matrix, (n, q)."""
        found: Float32 = self.features.toarray()
        return found

    @cached_property
    def degrees(self) -> Float32:
        """Sums the weights of each node's edges, (n,)."""
        found: Float32 = np.asarray(self.adjacency.sum(1), dtype=np.float32).reshape(-1)
        return found

    @property
    def edges(self) -> int:
        """Number of edges, each counted once."""
        return int(self.adjacency.nnz // 2)

    def nodes_of(self, split: int) -> Int64:
        """Lists the rows of a split's nodes, ascending."""
        return np.flatnonzero(self.splits == split)

    def list_edges(self) -> tuple[Int64, Int64, Float32]:
        """Lists each edge once: the lower row, the higher row, the weight."""
        upper = sparse.coo_array(sparse.triu(self.adjacency, 1))
        return upper.row.astype(np.int64), upper.col.astype(np.int64), upper.data

    def edge_homophily(self, nodes: Int64 | None = None) -> float | None:
        """Computes the share of edges between nodes of the same label (FedGSP, Eq. 35).

        Both labels must be known. nodes: only edges between these rows count, such as training nodes. None without
        such an edge.
        """
        known = self.labels != UNKNOWN
        if nodes is not None:
            chosen = np.zeros(len(known), bool)
            chosen[nodes] = True
            known = known & chosen
        sources, targets, _ = self.list_edges()
        both = known[sources] & known[targets]
        if not both.any():
            return None
        return float(np.mean(self.labels[sources[both]] == self.labels[targets[both]]))

    def with_splits(self, splits: NDArray[np.int8]) -> NodeShard:
        """Returns the same graph with other splits."""
        return replace(self, splits=splits)
