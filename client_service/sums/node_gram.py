"""Gram sums at a silo of nodes: its part, and the matrices of all silos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.models.nodes.closed_form import NodeGram, build_design_spec, count_gram, make_design
from client_service.sums.node_directions import NodeDirections, hide_rare_columns, require_columns, training_digest
from client_service.sums.silo_sum import FIXED_BYTES, Arrays, SiloSum, Statistics, SummedDigests, SumRound, Sums
from shared.errors import ProtocolError
from shared.method.declaration import Counts
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Float32
from shared.method.run_memory import SPARSE, Cost
from shared.method.settings import MethodSettings
from shared.sums.node_directions import require_sizes
from shared.sums.node_gram import NODE_GRAM, RIGHT, SQUARE, decode_gram, encode_gram, gram_number_format
from shared.sums.sum import EMPTY_PART_DIGEST, Float64, UInt32
from shared.words import count_noun

Int64 = NDArray[np.int64]
MOST_SUMMED = 1 << 10  # silos, for which the low words of a sum have room
MOST_NAMED = 5  # columns in an error
SLACK = 1e-7  # of the largest eigenvalue, by which rounding may leave one below 0
SCALE_HINT = (
    "give them in another unit or as logarithms, about 1 in size, alike in all silos, or set nodes.fraction_bits lower"
)
FALSE_NUMBERS = (
    "a silo or the aggregator gave false numbers; sum anew (lpsfed run --renew-basis), or train without them"
)


@dataclass(frozen=True, eq=False)
class SummedGram(Statistics):
    """Gram sums of all silos' training nodes.

    square: Phi' Phi (D, D). right: Phi' Y (D, c). products: the directions over which they were counted, where
    features are projected.
    """

    square: Float64
    right: Float64
    products: UInt32 | None = None

    def find_projection(self, nodes: NodeSettings) -> Float64 | None:
        """Computes the projection of features, (q, r); None if they are taken as they are."""
        if self.products is None:
            return None
        return NodeDirections("node_directions", self.products).find_projection(nodes)

    def pool(self, shard: NodeShard, design: Float32) -> NodeGram:
        """Returns the Gram matrices of all silos' training nodes.

        A silo that joined after the sums were made adds its own nodes here, and nowhere else. design: of all the
        shard's nodes, (n, D).
        """
        found = NodeGram(self.square, self.right)
        if self.included:
            return found
        rows = shard.nodes_of(TRAIN)
        return found + count_gram(design[rows], shard.labels[rows], len(shard.classes))


class GramPart(NamedTuple):
    """Graph of a silo, and the least nodes that a class or a column needs."""

    shard: NodeShard
    least: int


def choose_nodes(shard: NodeShard, least: int) -> Int64:
    """Chooses the training nodes to count, ascending, without rare classes of the silo."""
    rows = shard.nodes_of(TRAIN)
    sizes = np.bincount(shard.labels[rows], minlength=len(shard.classes))
    return rows[sizes[shard.labels[rows]] >= least]


def count_nodes(shard: NodeShard, method: MethodSettings) -> GramPart:
    """Checks the shard's sizes; its Gram matrices need the round's directions too.

    Raises SettingsError for other sizes than the federation's.
    """
    return GramPart(require_columns(shard, require_sizes(method.nodes)), method.basis.least_pairs)


def digest_nodes(shard: NodeShard, method: MethodSettings) -> SummedDigests:
    """Computes the digests of the summed data; of zeros if no node is counted."""
    nothing = not len(choose_nodes(shard, method.basis.least_pairs))
    return SummedDigests(training_digest(shard), EMPTY_PART_DIGEST if nothing else shard.columns_digest)


def own_gram(part: GramPart, nodes: NodeSettings, directions: NodeDirections | None) -> NodeGram:
    """Computes the Gram matrices that a silo adds.

    Classes and columns that too few nodes have are left out.
    """
    projection = None if directions is None else directions.find_projection(nodes)
    rows = choose_nodes(part.shard, part.least)
    design = make_design(part.shard, build_design_spec(nodes), projection)[rows]
    return count_gram(hide_rare_columns(design, part.least), part.shard.labels[rows], nodes.classes)


def add_gram(at: SumRound) -> Sums:
    """Encodes this silo's Gram matrices; raises ProtocolError for features that are too large."""
    own = own_gram(at.counted, at.method.nodes, _require_directions(at))
    try:
        return encode_gram(own.square, own.right, at.method.nodes, at.clients)
    except ProtocolError as error:
        told = explain_large_columns(at.counted, at.method.nodes, at.clients)
        raise ProtocolError(told or f"{error}: features of nodes: {SCALE_HINT}") from None


def explain_large_columns(part: GramPart, nodes: NodeSettings, clients: int) -> str:
    """Lists the feature columns whose squares are too large for a sum.

    "" where all have room in a sum of this many silos. Those of neighbours count too. Projected features have room,
    because their rows are of length 1.
    """
    if nodes.projected:
        return ""
    spec = build_design_spec(nodes)
    design = make_design(part.shard, spec)[choose_nodes(part.shard, part.least), : 1 + spec.linear].astype(np.float64)
    squares = (design**2).sum(0)[1:].reshape(-1, spec.block).max(0)
    bound = gram_number_format(nodes).limit / clients
    large = [repr(part.shard.feature_names[int(place)]) for place in np.flatnonzero(~(squares < bound))]
    if not large:
        return ""
    told = ", ".join(large[:MOST_NAMED]) + (f" and {len(large) - MOST_NAMED} more" if large[MOST_NAMED:] else "")
    return (
        f"features of nodes: expected columns whose squares add up to less than {bound:,.0f} over a silo's training"
        f" nodes ({count_noun(clients, 'silo')}), got more in {told}: {SCALE_HINT}"
    )


def _require_directions(at: SumRound) -> NodeDirections | None:
    if at.over is not None and not isinstance(at.over, NodeDirections):
        raise ProtocolError(f"expected Gram sums over directions of nodes' features, got some over {at.over.kind!r}")
    return at.over


def finish_gram(at: SumRound) -> SummedGram:
    """Decodes the sums. ProtocolError for sums that no data can have."""
    sums, nodes, directions = at.sums[at.number], at.method.nodes, _require_directions(at)
    form = gram_number_format(nodes)
    square, right = decode_gram(sums, nodes)
    wrong = "numbers that have wrapped around"
    if not any(form.has_wrapped(sums[name], MOST_SUMMED) for name in (SQUARE, RIGHT)):
        wrong = explain_impossible_gram(square, right)
    if wrong:
        raise ProtocolError(f"expected Gram sums of nodes that data can have, got {wrong}: {FALSE_NUMBERS}")
    return SummedGram("node_gram", square, right, None if directions is None else directions.products)


def explain_impossible_gram(square: Float64, right: Float64) -> str:
    """Explains why no nodes can have these matrices; "" where some can.

    The matrix of Phi and Y together, with the classes' sizes on the diagonal of Y, has no eigenvalue below 0.
    """
    sizes = right[0]
    if (np.diagonal(square) < 0).any():
        return "a sum of squares below 0"
    if square[0, 0] < 1 or (sizes < 0).any() or (sizes != np.rint(sizes)).any():
        return "numbers of nodes that are no numbers of nodes"
    whole = np.block([[square, right], [right.T, np.diag(sizes)]])
    values = np.linalg.eigvalsh(whole)
    rounding = len(whole) * MOST_SUMMED * np.finfo(np.float64).eps * max(1.0, float(values[-1]))
    if values[0] < -max(SLACK * float(values[-1]), rounding):
        return "columns that go together more than their sizes allow"
    return ""


def read_gram(arrays: Arrays, metadata: Mapping[str, str]) -> SummedGram:
    """Reads Gram sums from the disk."""
    return SummedGram(metadata["kind"], arrays["square"], arrays["right"], arrays.get("products"))


def cost_gram(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the costs of a silo's design, of its Gram matrices, and of the ridge."""
    nodes = method.nodes
    columns, block = float(nodes.columns), float(nodes.projected or nodes.features)
    held = 24.0 * shard.users * (columns + block) + 80.0 * columns**2 + 8.0 * nodes.features * nodes.projected
    operations = SPARSE * 4.0 * shard.edges * block * (nodes.hops + 1) + shard.users * columns**2 + 30.0 * columns**3
    words = f"{NODE_GRAM.statistics} ({columns:,.0f} columns)"
    return [Cost("the sums", FIXED_BYTES + 16.0 * columns**2), Cost(words, held, operations)]


def estimate_gram_bytes(method: MethodSettings) -> float:
    """Estimates the memory of the matrices of a ridge and of its solutions."""
    return 100.0 * method.nodes.columns**2


def warn_of_few_nodes(method: MethodSettings) -> tuple[str, ...]:
    """Warns of what Gram sums tell of few nodes."""
    columns, least = method.nodes.columns, method.basis.least_pairs
    told = (
        f"the Gram sums are products of nodes' features in {columns:,} columns: from the sum over fewer than"
        f" {columns**1.5:,.0f} training nodes, all silos together, who knows a node's features and neighbours can tell"
        f" whether it was counted, and of fewer than {columns:,} nodes the features follow but for a rotation; all"
        " other silos together know this silo's part, and of it the sum of features of each class",
    )
    if least > 1:
        return told
    return (*told, "basis.least_pairs = 1: of a class of which one node is counted, the features of that node are told")


NODE_GRAM_SUM = SiloSum(
    declared=NODE_GRAM,
    task="nodes",
    count=count_nodes,
    digests=digest_nodes,
    add=add_gram,
    finish=finish_gram,
    load=read_gram,
    costs=cost_gram,
    use_bytes=estimate_gram_bytes,
    warnings=warn_of_few_nodes,
    nothing="this silo has no training nodes of a class of which it has basis.least_pairs of them",
)
