"""Compiled node graph and model: reads both, and scores known and new nodes.

The mapped arrays hold the graph, each node's powers P^k x, and what the model makes of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays, errors_of_folder, folder_error, open_arrays
from client_service.compiled.node_scorer import NodeScorer
from client_service.compiled.texts import IdIndex
from client_service.compiled.weight_rows import WeightRows

KIND: Final = "nodes"
MODEL_KIND: Final = "model"
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
NO_LABEL: Final = -1


class NodesHead(BaseModel):
    """Description of the arrays of a compiled node graph.

    digest: digest of the shard, under which models are kept. classes: names, in the order of columns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["lpsfed-compiled-nodes/1"] = "lpsfed-compiled-nodes/1"
    task: Literal["nodes"] = "nodes"
    name: str
    digest: str
    nodes: int
    features: int
    classes: tuple[str, ...]


class JoiningHead(BaseModel):
    """Measures of joining on the silo's own validation nodes; see `JoiningOut`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    measure: str
    nodes: int
    alone: float
    served: float
    answers: str


class NodeModelHead(BaseModel):
    """Description of the arrays of a compiled model of nodes.

    nodes: the digest of its graph. hops: J, how often features are propagated. width: d, of the projected features.
    of_known_alone: are the stored probabilities of a network that is no function of P^k x? New nodes, and those that
    have changed, are scored by the closed form then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["lpsfed-compiled-labels/1"] = "lpsfed-compiled-labels/1"
    task: Literal["nodes"] = "nodes"
    version: str
    kept_at: str
    nodes: str
    hops: int
    width: int
    joining: JoiningHead
    of_known_alone: bool = False


class CompiledNodes:
    """Compiled node graph.

    edges: weights between nodes, by rows. degrees: sums of weights, (n,). labels: columns of known labels or NO_LABEL,
    (n,). shares: of each class among the training labels, (c,). name: of the compiled folder, "" in memory.
    """

    def __init__(self, head: NodesHead, arrays: Arrays, name: str = "") -> None:
        self.head, self.name = head, name
        self.node_ids, self.feature_names = IdIndex(arrays, "nodes"), IdIndex(arrays, "columns")
        self.degrees, self.labels, self.shares = arrays["degrees"], arrays["labels"], arrays["shares"]
        self.edges = WeightRows(arrays, "edges", head.nodes)
        if {len(self.node_ids), len(self.degrees), len(self.labels)} != {head.nodes}:
            raise ValueError(f"{head.nodes:,} nodes, got others")
        if len(self.feature_names) != head.features or len(self.shares) != len(head.classes):
            raise ValueError(f"{head.features:,} features and {len(head.classes):,} classes, got others")

    @property
    def digest(self) -> str:
        """Digest of the shard."""
        return self.head.digest


def open_nodes(folder: Path) -> CompiledNodes:
    """Opens a compiled node graph.

    DataError, with what to do, for a damaged folder or one of another kind.
    """
    head, arrays = open_arrays(folder, NodesHead)
    with errors_of_folder(folder):
        return CompiledNodes(head, arrays, folder.name)


class Neighbourhood(NamedTuple):
    """Neighbours of a node that is new or has changed since the graph was compiled.

    powers: P^k x of each neighbour as compiled, (m, J + 1, d). degrees: theirs as compiled, (m,). weights: of the edges
    now, (m,). before: of the edges in the compiled graph, 0 if there was none, (m,).
    """

    powers: Float32
    degrees: Float64
    weights: Float64
    before: Float64


def inverse_roots(degrees: NDArray[np.floating]) -> Float64:
    """Computes d^-1/2; 0 if d is 0."""
    wide = np.asarray(degrees, dtype=np.float64)
    return np.divide(1.0, np.sqrt(wide), out=np.zeros_like(wide), where=wide > 0)


class CompiledNode(NamedTuple):
    """Compiled state of a node whose edges or features have changed since.

    powers: its rows, (J + 1, d). degree: of its edges. beyond, rest: where border sums are known, what the degree has
    besides at each hop, (J,), and what P^k x has besides, before it is divided by the root of the degree, (J, d).
    """

    powers: Float32
    degree: float
    beyond: Float64 | None = None
    rest: Float64 | None = None


class NodePowers(NamedTuple):
    """Powers P^k x of a node, (J + 1, d), and its neighbours' parts.

    parts: of each neighbour, for k > 0, (m, J, d).
    """

    powers: Float64
    parts: Float64


def join_node(features: Float64, found: Neighbourhood, before: CompiledNode | None = None) -> NodePowers:
    """Computes P^k x of a node from the compiled rows of its neighbours.

    features: x of the node, (d,). before: what the compiled graph has of the node itself; None for a new one.
    Exact for k = 1, and for all k without changes. From k = 2 on the neighbours' rows follow their new degrees and have
    the node's own feature walk back, but what the change means for nodes further away, and between two neighbours that
    have an edge, is left out until the graph is compiled anew.
    """
    hops = found.powers.shape[1] - 1
    powers, parts = np.zeros((hops + 1, len(features))), np.zeros((len(found.weights), hops, len(features)))
    powers[0] = features
    beyond = np.zeros(hops) if before is None or before.beyond is None else before.beyond
    roots, after = inverse_roots(found.weights.sum() + beyond), found.degrees - found.before + found.weights
    there = found.weights / np.sqrt(np.maximum(after, found.weights))
    shrunk = np.sqrt(found.degrees / np.maximum(after, found.weights))
    walked = np.sqrt(found.degrees * (0.0 if before is None else before.degree))
    left = np.divide(found.before, walked, out=np.zeros_like(there), where=found.before > 0)
    rows = found.powers[:, 0].astype(np.float64)
    for k in range(1, hops + 1):
        parts[:, k - 1] = (roots[k - 1] * there)[:, None] * rows
        powers[k] = parts[:, k - 1].sum(axis=0)
        rows = found.powers[:, k].astype(np.float64)
        if before is not None:
            rows -= left[:, None] * before.powers[k - 1]
            if before.rest is not None:
                powers[k] += roots[k - 1] * before.rest[k - 1]
        rows = shrunk[:, None] * rows + (roots[0] * there)[:, None] * powers[k - 1]
    return NodePowers(powers, parts)


class CompiledNodeModel:
    """Compiled model of a node graph.

    powers: P^k x of each node, (n, J + 1, d). probabilities: of each node's classes, (n, c). projection: of features of
    length 1 to d columns, (q, d); None if they are taken as they are.
    """

    def __init__(self, head: NodeModelHead, arrays: Arrays, nodes: CompiledNodes) -> None:
        """Opens a compiled model.

        Raises ValueError for arrays that do not fit the head.
        """
        self.head, count, classes = head, nodes.head.nodes, len(nodes.head.classes)
        self.powers: Float32 = arrays["powers"]
        self.probabilities: Float32 = arrays["probabilities"]
        self.projection: Float32 | None = arrays.get("projection")
        if self.powers.shape != (count, head.hops + 1, head.width) or self.probabilities.shape != (count, classes):
            raise ValueError(f"powers and probabilities of {count:,} nodes, got others")
        entered = head.width if self.projection is None else self.projection.shape[0]
        if entered != nodes.head.features:
            raise ValueError(f"{nodes.head.features:,} features, got {entered:,}")
        roots = inverse_roots(nodes.degrees)
        self._nodes, self._has_borders = nodes, "receiving" in arrays
        self._giving: Float64 = arrays.get("giving", roots)
        self._receiving: Float64 = arrays.get("receiving", roots[:, None])
        self.scorer = NodeScorer(arrays, head.hops, head.width, classes)

    @property
    def version(self) -> str:
        """Version that answers carry."""
        return self.head.version

    @property
    def kept_at(self) -> str:
        """Time when the model was kept on the disk, UTC, ISO 8601."""
        return self.head.kept_at

    def read_node_powers(self, row: int, neighbours: Int64, weights: Float64) -> NodePowers:
        """Returns P^k x of a node of the graph, and each neighbour's part of that."""
        shares = weights * self._giving[neighbours]
        received = shares[:, None] * self._receiving[row]  # (m, J), or (m, 1) where all hops have one rate
        parts = received[:, :, None] * self.powers[neighbours, :-1]
        return NodePowers(self.powers[row].astype(np.float64), parts)

    def compiled_node(self, row: int) -> CompiledNode:
        """Returns the compiled state of a node."""
        powers, degree = self.powers[row], float(self._nodes.degrees[row])
        if not self._has_borders:
            return CompiledNode(powers, degree)
        neighbours, weights = self._nodes.edges.row(row)
        known, received = self.read_node_powers(row, neighbours, weights.astype(np.float64)), self._receiving[row]
        rest = np.divide(
            known.powers[1:] - known.parts.sum(axis=0),
            received[:, None],
            out=np.zeros_like(known.powers[1:]),
            where=received[:, None] > 0,
        )
        whole = np.divide(1.0, received**2, out=np.full_like(received, degree), where=received > 0)
        return CompiledNode(powers, degree, np.maximum(whole - degree, 0.0), rest)

    def neighbourhood(self, neighbours: Int64, weights: Float64, before: Float64) -> Neighbourhood:
        """Collects the compiled rows of neighbours.

        weights, before: of the edges now, and in the compiled graph.
        """
        giving = self._giving[neighbours].astype(np.float64)
        degrees = np.divide(1.0, giving**2, out=np.zeros_like(giving), where=giving > 0)
        return Neighbourhood(self.powers[neighbours], degrees, weights, before)

    def project(self, columns: Int64, values: Float64) -> Float64:
        """Projects the features of a node, given by columns and values, to (d,)."""
        if self.projection is not None:
            length = float(np.linalg.norm(values))
            found: Float64 = (values / (length or 1.0)) @ self.projection[columns].astype(np.float64)
            return found
        row = np.zeros(self.head.width)
        row[columns] = values
        return row


def open_node_model(folder: Path, nodes: CompiledNodes) -> CompiledNodeModel:
    """Opens a compiled model of a graph.

    DataError for a damaged folder, and for a model of another graph.
    """
    head, arrays = open_arrays(folder, NodeModelHead)
    if head.nodes != nodes.digest:
        raise folder_error(folder, "a model of the published nodes, got one of other nodes")
    with errors_of_folder(folder):
        return CompiledNodeModel(head, arrays, nodes)
