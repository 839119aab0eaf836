"""Border sums at a silo: its part of the table, and its nodes' rows.

All silos keep the same table as it was summed; a row is random noise to every silo but its owner.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.foreign_edges import BorderSums
from client_service.data.id_columns import normalise_ids
from client_service.data.node_graphs import NodeShard
from client_service.models.nodes.closed_form import unit_rows
from client_service.models.nodes.spectral_bases import inverse_roots, propagate_nodes
from client_service.sums.silo_sum import FIXED_BYTES, Arrays, SiloSum, Statistics, SummedDigests, SumRound, Sums
from shared.errors import ProtocolError
from shared.method.declaration import Counts
from shared.method.graph import Float64
from shared.method.run_memory import SPARSE, Cost
from shared.method.settings import MethodSettings
from shared.protocol.secure.vectors import MaskStream, add_masks_in_place
from shared.sums.node_borders import NODE_BORDERS, TABLE, NodeCells, count_rows, list_rows, place_nodes, row_width
from shared.sums.sum import EMPTY_PART_DIGEST, FRACTION_BITS, LIMIT, UInt32, decode_fixed

Int64 = NDArray[np.int64]
ARRAYS = ("claims", "tables")


@dataclass(frozen=True, eq=False)
class Borders(Statistics):
    """The summed table of each round.

    claims: of the first round, (L,). tables: of the later ones, (K, L). federation: the key of its aggregator, by which
    ids are hashed. width: numbers of a row. least: of foreign neighbours, k.
    """

    federation: str
    width: int
    least: int
    claims: UInt32
    tables: UInt32

    def metadata(self) -> dict[str, str]:
        """Describes how ids are hashed, and the size of a row."""
        words = {"kind": self.kind, "federation": self.federation}
        return words | {"width": str(self.width), "least": str(self.least)}

    @property
    def rows(self) -> int:
        """Number of rows of a table."""
        return len(self.claims) // self.width

    def complete(self, shard: NodeShard, secret: bytes) -> NodeShard:
        """Completes the shard by the rows of its own nodes.

        secret: the silo's, of the run that has summed.
        """
        found = read_borders(shard, self, secret)
        return shard if found is None else replace(shard, borders=found)


def read_borders(shard: NodeShard, known: Borders, secret: bytes) -> BorderSums | None:
    """Reads the rows of the silo's own nodes.

    None if the silo has no foreign edges, or another number of features. A row counts where all tables agree on
    its number of neighbours, and that is possible for the node and at least `least`.
    """
    foreign, hops = shard.foreign, len(known.tables)
    if foreign is None or shard.features.shape[1] + 1 != known.width:
        return None
    places = find_rows(place_own(shard, known.federation, len(known.claims)), known.claims, known.rows)
    own, rows = np.flatnonzero(places >= 0), places[places >= 0]
    opened = np.zeros((hops, len(own), known.width), np.uint32)
    for hop, table in enumerate(known.tables):
        read = known.rows * known.width
        padding = draw_padding(secret, known.claims, hop + 2)
        opened[hop] = (table - padding)[:read].reshape(known.rows, known.width)[rows]
    counts = opened[:, :, -1].astype(np.int64)
    most = foreign.counts[own]
    believed = ((counts >= known.least) & (counts <= most) & (counts == counts[0])).all(0)
    found = BorderSums(
        np.zeros(len(shard.node_ids), np.int64),
        np.zeros((hops, len(shard.node_ids), known.width - 1), np.float32),
    )
    found.counts[own[believed]] = counts[0, believed]
    found.sums[:, own[believed]] = decode_fixed(np.ascontiguousarray(opened[:, believed, :-1]))
    return found


def place_own(shard: NodeShard, federation: str, numbers: int) -> NodeCells:
    """Hashes the ids of the silo's own nodes to cells."""
    return place_nodes(_spell(shard.node_ids), federation, numbers)


def _spell(ids: Sequence[str]) -> list[str]:
    return normalise_ids(pl.Series("node", ids, dtype=pl.String)).to_list()


def find_rows(nodes: NodeCells, claims: UInt32, rows: int) -> Int64:
    """Finds the row of each node.

    -1 if nobody claims it, several do, or other nodes have its cells.
    """
    listed, found = list_rows(claims, rows), np.full(len(nodes.claims), -1, np.int64)
    for cells in nodes.cells[::-1]:
        found = np.where((claims[cells] == nodes.claims) & (listed[cells] >= 0), listed[cells], found)
    return found


def draw_padding(secret: bytes, claims: UInt32, number: int) -> UInt32:
    """Draws numbers that only the silo knows, (L,), for these claims and this round."""
    label = b"border rows" + hashlib.sha256(np.ascontiguousarray(claims, dtype="<u4").data).digest()
    found = np.zeros(len(claims), np.uint32)
    add_masks_in_place(found, [MaskStream(hmac.digest(secret, label, hashlib.sha256), 1)], piece=number)
    return found


def keep_shard(shard: NodeShard, method: MethodSettings) -> NodeShard:
    """Returns the shard: all is counted in the rounds, which need earlier sums."""
    del method
    return shard


def digest_borders(shard: NodeShard, method: MethodSettings) -> SummedDigests:
    """Computes the digests of features and edges, and of the names of columns."""
    del method
    total = hashlib.sha256()
    for matrix in (shard.features, shard.adjacency):
        for part, kind in ((matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f4")):
            total.update(np.ascontiguousarray(part, dtype=kind).data)
    if shard.foreign is None:
        return SummedDigests(total.hexdigest(), EMPTY_PART_DIGEST)
    total.update(shard.foreign.digest.encode())
    return SummedDigests(total.hexdigest(), shard.columns_digest)


def add_borders(at: SumRound) -> Sums:
    """Adds claims in the first round, then sums for other silos' nodes, and padding.

    The padding is on the rows of the silo's own nodes.
    """
    shard: NodeShard = at.counted
    numbers = at.method.nodes.border_numbers
    own = place_own(shard, at.federation, numbers)
    table = np.zeros(numbers, np.uint32)
    if at.number == 1:
        claimed = _list_claimed(shard, at.method)
        for cells in own.cells:
            np.add.at(table, cells[claimed], own.claims[claimed])
        return {TABLE: table}
    claims, rows, width = at.sums[1][TABLE], count_rows(at.method), row_width(at.method)
    grid = table[: rows * width].reshape(rows, width)
    _add_neighbours(grid, shard, at, claims)
    padded = find_rows(own, claims, rows)
    padded = padded[padded >= 0]
    grid[padded] += draw_padding(at.secret, claims, at.number)[: rows * width].reshape(rows, width)[padded]
    return {TABLE: table}


def _list_claimed(shard: NodeShard, method: MethodSettings) -> Int64:
    """Lists own nodes with enough foreign neighbours."""
    if shard.foreign is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(shard.foreign.counts >= method.nodes.border_least)


def _add_neighbours(grid: UInt32, shard: NodeShard, at: SumRound, claims: UInt32) -> None:
    """Adds sums of own nodes' features to the rows of their foreign neighbours.

    Only foreign nodes with `border_own` of them or more get a sum.
    """
    if shard.foreign is None:
        return
    by_foreign = shard.foreign.weights.T.tocsr()
    counts = np.diff(by_foreign.indptr)
    enough = np.flatnonzero(counts >= at.method.nodes.border_own)
    cells = place_nodes(_spell([shard.foreign.ids[one] for one in enough.tolist()]), at.federation, len(claims))
    rows = find_rows(cells, claims, len(grid))
    chosen, rows = enough[rows >= 0], rows[rows >= 0]
    once = np.flatnonzero(np.bincount(rows, minlength=len(grid))[rows] == 1)  # of two ids with one spelling neither
    chosen, rows = chosen[once], rows[once]
    scales = inverse_roots((shard.degrees + shard.foreign.degrees).astype(np.float64))
    values = by_foreign[chosen].astype(np.float64) @ (scales[:, None] * _propagate_own(shard, at))
    fits = (np.abs(values) < LIMIT / max(1, at.clients)).all(1)  # a row that has no place in a sum is left out
    chosen, rows = chosen[fits], rows[fits]
    words = np.rint(values[fits] * 2.0**FRACTION_BITS).astype(np.int64).astype(np.uint32)
    grid[rows, :-1] += words
    grid[rows, -1] += counts[chosen].astype(np.uint32)


def _propagate_own(shard: NodeShard, at: SumRound) -> Float64:
    """Computes P^h X of the own nodes for round h + 2.

    The sums of the rounds before complete it.
    """
    hops = at.number - 2
    features = unit_rows(shard.features) if at.method.nodes.projected else shard.features
    product: Float64 = features.toarray().astype(np.float64)
    if hops == 0:
        return product
    tables = np.stack([at.sums[number][TABLE] for number in range(2, at.number)])
    known = _borders(at, tables).complete(replace(shard, borders=None), at.secret)
    *_, product = propagate_nodes(known, product, hops)
    return product


def _borders(at: SumRound, tables: UInt32) -> Borders:
    nodes = at.method.nodes
    return Borders("node_borders", at.federation, row_width(at.method), nodes.border_least, at.sums[1][TABLE], tables)


def finish_borders(at: SumRound) -> Borders:
    """Returns the tables of all rounds.

    ProtocolError if rows that nobody has claimed are not zero.
    """
    found = _borders(at, np.stack([at.sums[number][TABLE] for number in range(2, at.number + 1)]))
    used = (list_rows(found.claims, found.rows).max(initial=-1) + 1) * found.width
    if found.tables[:, used:].any():
        words = "a silo or the aggregator gave false numbers; sum anew, or train without them"
        raise ProtocolError(f"expected zeros in unclaimed rows of border sums, got other numbers: {words}")
    return found


def read_tables(arrays: Arrays, metadata: Mapping[str, str]) -> Borders:
    """Reads border sums from the disk."""
    claims, tables = (arrays[name] for name in ARRAYS)
    return Borders(
        "node_borders", metadata["federation"], int(metadata["width"]), int(metadata["least"]), claims, tables
    )


def cost_borders(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the costs of the tables, and of propagating the silo's features."""
    sent, width = float(method.nodes.border_numbers), float(row_width(method))
    kept = 4.0 * sent * method.basis.rounds
    nodes, edges = float(shard.users), float(shard.edges)
    operations = sent + SPARSE * 2.0 * edges * width * method.basis.rounds + 2000.0 * nodes
    words = f"{NODE_BORDERS.statistics} ({sent:,.0f} numbers)"
    return [Cost("the sums", FIXED_BYTES + kept), Cost(words, 24.0 * sent + 32.0 * nodes * width, operations)]


def warn_of_subtraction(method: MethodSettings) -> tuple[str, ...]:
    """Warns that rows reveal features by subtraction, and to a lying silo."""
    least, own = method.nodes.border_least, method.nodes.border_own
    return (
        f"border sums tell another silo the sum of features of {own} or more of this silo's nodes that are neighbours"
        f" of one of its own ({least} or more of all silos, if it is honest); of two of its nodes whose neighbours"
        " differ by one, it learns that one's features by subtraction",
    )


NODE_BORDERS_SUM = SiloSum(
    declared=NODE_BORDERS,
    task="nodes",
    count=keep_shard,
    digests=digest_borders,
    add=add_borders,
    finish=finish_borders,
    load=read_tables,
    complete=Borders.complete,
    costs=cost_borders,
    warnings=warn_of_subtraction,
)
