"""Sum of directions at a silo of nodes: feature products, and the projection they give."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.models.nodes.closed_form import count_directions
from client_service.sums.silo_sum import FIXED_BYTES, Arrays, SiloSum, Statistics, SummedDigests, SumRound, Sums
from shared.errors import SettingsError
from shared.method.declaration import Counts
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Float32
from shared.method.run_memory import SPARSE, Cost
from shared.method.settings import MethodSettings
from shared.sums.node_directions import FORM, NODE_DIRECTIONS, PRODUCTS, draw_directions, find_projection, require_sizes
from shared.sums.sum import EMPTY_PART_DIGEST, Float64, UInt32


@dataclass(frozen=True, eq=False)
class NodeDirections(Statistics):
    """Directions of the features of all silos' nodes: the sum, alike in every silo.

    products: (1, q r), words.
    """

    products: UInt32

    def find_projection(self, nodes: NodeSettings) -> Float64:
        """Computes the orthonormal projection of features, (q, r)."""
        return find_projection(self.products, nodes)


def require_columns(shard: NodeShard, nodes: NodeSettings) -> NodeShard:
    """Returns a shard with the federation's features and classes; raises SettingsError for another."""
    sizes, expected = (shard.features.shape[1], len(shard.classes)), (nodes.features, nodes.classes)
    if sizes != expected:
        words = f"expected {expected[0]:,} features and {expected[1]:,} classes, as all silos have (nodes)"
        raise SettingsError(
            f"shard of nodes: {words}, got {sizes[0]:,} and {sizes[1]:,}: make it with the same columns"
        )
    for what, agreed, own in (
        ("feature_names", nodes.feature_names, shard.feature_names),
        ("class_names", nodes.class_names, shard.classes),
    ):
        if agreed and tuple(agreed) != tuple(own):
            place = next(place for place, pair in enumerate(zip(agreed, own, strict=True)) if pair[0] != pair[1])
            raise SettingsError(
                f"nodes.{what}: expected the names that all silos share, in their order, got another at place"
                f" {place + 1} ({agreed[place]!r} was expected): make the shard with these"
            )
    return shard


def training_digest(shard: NodeShard) -> str:
    """Computes the digest of the summed data: features, edges, and labels of training nodes.

    Ids are not summed, and so not digested.
    """
    labels = np.where(shard.splits == TRAIN, shard.labels, -1)
    total = hashlib.sha256()
    for matrix in (shard.features, shard.adjacency):
        for part, kind in ((matrix.indptr, "<i8"), (matrix.indices, "<i8"), (matrix.data, "<f4")):
            total.update(np.ascontiguousarray(part, dtype=kind).data)
    total.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return total.hexdigest()


def hide_rare_columns(rows: Float32, least: int) -> Float32:
    """Sets columns to 0 that fewer than `least` rows have.

    A sum over so few rows would tell of each.
    """
    having = np.count_nonzero(rows, axis=0)
    return np.where(having < least, np.float32(0.0), rows)


def count_products(shard: NodeShard, method: MethodSettings) -> Float64:
    """Computes this silo's part of the directions, (q, r).

    Features that few nodes have are left out.

    SettingsError for a shard of other sizes.
    """
    nodes = require_sizes(method.nodes)
    features = require_columns(shard, nodes).features
    having = np.bincount(features.indices[features.data != 0], minlength=nodes.features)
    kept = sparse.diags_array((having >= method.basis.least_pairs).astype(np.float32))
    shown = replace(shard, features=sparse.csr_array(features @ kept))
    return count_directions(shown, nodes.hops, draw_directions(nodes))


def digest_features(shard: NodeShard, method: MethodSettings) -> SummedDigests:
    """Computes the digests of the summed data, and of the names of features and classes.

    Gram sums are stamped with the same digests.
    """
    del method
    return SummedDigests(training_digest(shard), shard.columns_digest if len(shard.node_ids) else EMPTY_PART_DIGEST)


def add_products(at: SumRound) -> Sums:
    """Encodes this silo's products."""
    return {PRODUCTS: FORM.encode(at.counted.ravel(), at.clients, PRODUCTS)}


def finish_products(at: SumRound) -> NodeDirections:
    """Keeps the sum. ProtocolError for one that no data can have."""
    found = NodeDirections("node_directions", at.sums[at.number][PRODUCTS])
    found.find_projection(at.method.nodes)
    return found


def read_directions(arrays: Arrays, metadata: Mapping[str, str]) -> NodeDirections:
    """Reads directions from the disk."""
    return NodeDirections(metadata["kind"], arrays["products"])


def cost_products(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the costs of products with directions, and of the projection that they become."""
    features, directions = float(method.nodes.features), float(method.nodes.projected)
    sent = features * directions
    words = f"{NODE_DIRECTIONS.statistics} ({features:,.0f} features, {directions:,.0f} directions)"
    held = 48.0 * sent + 8.0 * shard.users * directions + 40.0 * shard.edges
    operations = SPARSE * 4.0 * (method.nodes.hops + 1) * shard.edges * directions + 4.0 * sent * directions
    return [Cost("the sums", FIXED_BYTES + 4.0 * sent), Cost(words, held, operations)]


def warn_of_rare_features(method: MethodSettings) -> tuple[str, ...]:
    """Warns of what products with directions tell of features that few nodes have."""
    least = method.basis.least_pairs
    if least > 1:
        return ()
    return ("basis.least_pairs = 1: of a feature that one node has, the sum tells all other features of that node",)


NODE_DIRECTIONS_SUM = SiloSum(
    declared=NODE_DIRECTIONS,
    task="nodes",
    count=count_products,
    digests=digest_features,
    add=add_products,
    finish=finish_products,
    load=read_directions,
    costs=cost_products,
    warnings=warn_of_rare_features,
)
