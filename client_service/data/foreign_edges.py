"""Foreign edges of a silo, which lead to nodes of other silos, and their sums."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.digests import encode_list
from client_service.data.events import id_column, row_numbers
from shared.errors import DataError

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
NODE, FOREIGN, WEIGHT = "node", "foreign", "weight"  # columns of a table of foreign edges


@dataclass(frozen=True)
class ForeignEdges:
    """Edges between n own nodes and f nodes of other silos, or of none.

    ids: of the foreign nodes, ascending, each with an edge, (f,). weights: above 0, (n, f), float32.
    """

    ids: Sequence[str]
    weights: sparse.csr_array

    @cached_property
    def degrees(self) -> Float32:
        """Sums the weights of each own node's foreign edges, (n,)."""
        found: Float32 = np.asarray(self.weights.sum(1), dtype=np.float32).reshape(-1)
        return found

    @cached_property
    def counts(self) -> Int64:
        """Number of foreign neighbours of each own node, (n,)."""
        return np.diff(self.weights.indptr).astype(np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids and weights."""
        total = hashlib.sha256(encode_list(self.ids) + b"\n")
        for part, kind in ((self.weights.indptr, "<i8"), (self.weights.indices, "<i8"), (self.weights.data, "<f4")):
            total.update(np.ascontiguousarray(part, dtype=kind).data)
        return total.hexdigest()

    def list_edges(self, node_ids: Sequence[str]) -> pl.DataFrame:
        """Lists the edges by ids: columns node, foreign and weight."""
        entries = sparse.coo_array(self.weights)
        return pl.DataFrame(
            {
                NODE: pl.Series(node_ids, dtype=pl.String).gather(entries.row),
                FOREIGN: pl.Series(self.ids, dtype=pl.String).gather(entries.col),
                WEIGHT: entries.data.astype(np.float32),
            }
        )


@dataclass(frozen=True)
class BorderSums:
    """Border sums of a silo's nodes: features of their foreign neighbours, summed.

    counts: of how many neighbours of each own node, 0: nothing is known, (n,). sums: for h = 1 to K the sum of
    w d^-1/2 P^(h-1) x over these neighbours, w: the edge's weight, d: the neighbour's degree, (K, n, q).
    """

    counts: Int64
    sums: Float32

    @cached_property
    def digest(self) -> str:
        """SHA-256 over counts and sums."""
        content = hashlib.sha256(np.ascontiguousarray(self.counts, dtype="<i8").data)
        content.update(np.ascontiguousarray(self.sums, dtype="<f4").data)
        return content.hexdigest()


def build_foreign_edges(rows: Int64, ids: Sequence[str], weights: Float32, nodes: int) -> ForeignEdges | None:
    """Builds the foreign edges of `nodes` own nodes.

    rows, ids, weights: the own row, the foreign id and the weight of each edge.

    An edge that is given several times has the largest of its weights. None if there is no edge.
    """
    if not len(rows):
        return None
    listed, columns = np.unique(np.asarray(ids, dtype=object).astype(str), return_inverse=True)
    order = np.lexsort((-weights, columns, rows))
    kept_rows, kept_columns, values = rows[order], columns.reshape(-1)[order], weights[order].astype(np.float32)
    first = np.ones(len(order), bool)
    first[1:] = (kept_rows[1:] != kept_rows[:-1]) | (kept_columns[1:] != kept_columns[:-1])
    entries = (values[first], (kept_rows[first], kept_columns[first]))
    found = sparse.csr_array(sparse.coo_array(entries, shape=(nodes, len(listed))))
    found.sort_indices()
    parts = (found.data, found.indices.astype(np.int64), found.indptr.astype(np.int64))
    return ForeignEdges(tuple(listed.tolist()), sparse.csr_array(parts, shape=found.shape))


def read_foreign_edges(table: pl.DataFrame, ids: pl.Series, path: Path) -> ForeignEdges | None:
    """Reads foreign edges from columns node, foreign and, where present, weight.

    ids: the silo's, sorted. Raises DataError for an end that should be the silo's own and is not, for a foreign end
    that is, and for weights that are not finite numbers above 0. None for a table without rows.
    """
    rows, foreign = (
        row_numbers(id_column(table, NODE, path, exact=True), ids),
        id_column(table, FOREIGN, path, exact=True),
    )
    if strange := int((rows < 0).sum()):
        raise DataError(f"{path}: expected nodes of the shard in column {NODE!r}, got {strange} others")
    if own := int((row_numbers(foreign, ids) >= 0).sum()):
        raise DataError(f"{path}: expected nodes of other silos in column {FOREIGN!r}, got {own} of the shard's own")
    weights = np.ones(len(table), np.float32)
    if WEIGHT in table.columns:
        column = table[WEIGHT].cast(pl.Float32, strict=False).fill_null(float("nan"))
        weights = column.to_numpy().astype(np.float32)
    if wrong := int((~(np.isfinite(weights) & (weights > 0))).sum()):
        raise DataError(f"{path}: expected finite weights above 0, got {wrong} others")
    return build_foreign_edges(rows, foreign.to_list(), weights, len(ids))
