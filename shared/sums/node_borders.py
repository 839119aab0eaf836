"""Border sums: for nodes with neighbours in other silos, the sum of these neighbours' features.

The silos share a table of numbers, which is summed round by round. A node has two cells in it, by hashes of its id that
are keyed by the federation. Round 1: each silo claims the cells of its own nodes that have enough foreign neighbours. A
cell with one claim has a row in the later rounds; one with several has none. Round 1 + h: each silo adds, to the first
row of each foreign node that it knows, the sum of P^(h-1) x of its own neighbours of that node, and their number.

Nobody but the silo of the node can read a row: in the same sum that silo adds numbers of its own secret to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.errors import SettingsError
from shared.method.declaration import Part
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import FRACTION_BITS, Shapes, Sum, UInt32

WORD = "node_borders"
BORDERS: Part = "node_borders"
"""The part of a run that sums features of foreign neighbours."""
TABLE = "node_borders.table"
CLAIM = 1 << 24
"""Number that a claim adds to a cell, beside the node's mark; two claims add twice as much."""
CHOICES = 2  # cells of a node: where C of L cells are claimed, one has another claim too with a chance of C / L
CELL_BYTES, MARK_BYTES = 8, 3  # of the hash
Int64 = NDArray[np.int64]


class NodeCells(NamedTuple):
    """Cells of each node in the table, (CHOICES, M), and its claim, (M,).

    A cell holds the claim of a node that alone is claimed there.
    """

    cells: Int64
    claims: UInt32


def border_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the one tensor: cells in the first round, rows in the later ones.

    SettingsError if no row fits into the table.
    """
    count_rows(method)
    return (Tensor(TABLE, (method.nodes.border_numbers,), "zeros", dtype="U32"),)


def row_width(method: MethodSettings) -> int:
    """Counts the numbers of a row: features, and how many neighbours are summed.

    Raises SettingsError if the number of features is not set.
    """
    if method.nodes.features == 0:
        raise SettingsError("nodes.features: expected the columns of all silos' features with border sums, got 0")
    return method.nodes.features + 1


def count_rows(method: MethodSettings) -> int:
    """Counts the rows of the table. SettingsError for none."""
    width, numbers = row_width(method), method.nodes.border_numbers
    if numbers < width:
        raise SettingsError(f"nodes.border_numbers: expected {width:,} or more, as a row has, got {numbers:,}")
    return numbers // width


def border_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns no sizes, as all follow from the settings of nodes."""
    del basis, shapes
    return {}


def place_nodes(ids: Iterable[str], federation: str, numbers: int) -> NodeCells:
    """Hashes ids, in their one spelling, to cells.

    federation: its aggregator's key.

    Cells follow from the federation in every run: with other hashes a second sum would tell more.
    """
    key, size = hashlib.sha256(f"nodes of {federation}".encode()).digest(), CHOICES * CELL_BYTES + MARK_BYTES
    drawn = b"".join(hashlib.blake2b(one.encode(), key=key, digest_size=size).digest() for one in ids)
    parts = np.frombuffer(drawn, dtype=np.uint8).reshape(-1, size)
    cells = np.ascontiguousarray(parts[:, :-MARK_BYTES]).view("<u8").T % np.uint64(numbers)
    marks = parts[:, -MARK_BYTES:].astype(np.uint32) @ np.array([1, 1 << 8, 1 << 16], np.uint32)
    return NodeCells(cells.astype(np.int64), (CLAIM + marks).astype(np.uint32))


def list_rows(claims: UInt32, rows: int) -> Int64:
    """Lists the row of each cell, -1 if a cell has none.

    Cells with one claim have rows in their order, as long as there are any.
    """
    claimed = np.flatnonzero(np.asarray(claims) >> np.uint32(24) == 1)[:rows]
    found = np.full(len(claims), -1, np.int64)
    found[claimed] = np.arange(len(claimed))
    return found


def describe_borders(basis: BasisSettings) -> str:
    """Describes what all silos learn by border sums."""
    del basis
    return (
        "of a guessed id, whether it is a node of some silo with neighbours in other silos. Each silo alone reads, of"
        " each of its own nodes with enough foreign neighbours, the sum of these neighbours' features; where the"
        " neighbours of two of its nodes differ by one, it reads that one's by subtraction"
    )


NODE_BORDERS = Sum(
    name="node_borders",
    word=WORD,
    title="the border sums",
    statistics="sums of its nodes' features, for their neighbours in other silos",
    tensors=border_tensors,
    own_names=frozenset({TABLE}),
    sizes=border_sizes,
    fraction_bits={TABLE: FRACTION_BITS},
    rounds=lambda basis: basis.rounds,
    sums_needed=lambda basis: basis.rounds,
    steady=("basis.rounds", "nodes.border_least", "nodes.border_own", "nodes.border_numbers"),
    keeps_members=True,
    part=BORDERS,
    listed=False,
    row="",
    words={
        TABLE: "in the first round, as hashes, which of its nodes have neighbours in other silos; then sums of features"
        " of neighbours of other silos' nodes, which only these silos can read"
    },
    disclosure=describe_borders,
)
