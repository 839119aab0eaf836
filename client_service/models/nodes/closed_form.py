"""Fits labels of nodes in closed form: a ridge on propagated features, by Gram matrices that silos can sum.

Phi is the design of a silo's nodes, (n, D). Phi' Phi and Phi' Y of its training nodes are all that a ridge needs, so
that sums of them over silos give the ridge on all silos' training nodes. A logistic regression has no such sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from client_service.data.node_graphs import TRAIN, VALID, NodeShard
from client_service.models.nodes.measures import primary_score
from client_service.models.nodes.spectral_bases import propagate_nodes
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.settings import NodeSettings

Int64 = NDArray[np.int64]
STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-10, 3))  # of the ridge, a training node
OWN_WEIGHTS = (0.0, 1.0, 3.0, 10.0, 30.0)  # multiples of a silo's own Gram matrix beside the sum of all
ALONE = float("inf")


@dataclass(frozen=True)
class DesignSpec:
    """What the columns of a design are, alike in all silos.

    features: q. powers: of the propagation whose blocks P^k X the design has. directions: columns of a block where
    features are projected, 0 where they are as they are. random: ReLU features of all blocks, drawn by the seed.
    """

    features: int
    powers: tuple[int, ...]
    directions: int = 0
    random: int = 0
    seed: int = 0

    @property
    def block(self) -> int:
        """The number of columns of one power."""
        return self.directions or self.features

    @property
    def width(self) -> int:
        """D: a constant, the powers' blocks, the ReLU features."""
        return 1 + self.block * len(self.powers) + self.random

    def columns_of(self, powers: Sequence[int]) -> Int64:
        """The columns of the constant and of these powers' blocks."""
        places = [self.powers.index(power) for power in powers]
        blocks = [np.arange(1 + place * self.block, 1 + (place + 1) * self.block) for place in places]
        return np.concatenate([np.zeros(1, np.int64), *blocks]).astype(np.int64)

    @property
    def random_columns(self) -> Int64:
        """The columns of the ReLU features."""
        return np.arange(self.width - self.random, self.width)

    @cached_property
    def forms(self) -> dict[str, Int64]:
        """The forms of a model that one Gram matrix serves, each by its columns."""
        found = {f"linear{self.powers[-1]}": self.columns_of(self.powers)}
        if len(self.powers) > 1:
            for number in range(1, len(self.powers)):
                found[f"linear{self.powers[number - 1]}"] = self.columns_of(self.powers[:number])
        if self.random:
            found["relu"] = np.concatenate([[0], self.random_columns])
            found["both"] = np.arange(self.width)
        return found

    @cached_property
    def random_weights(self) -> Float32:
        """The weights of the ReLU features, (1 + columns of all blocks, random): the first row is a bias."""
        inputs = 1 + self.block * len(self.powers)
        drawn = np.random.default_rng([self.seed, inputs, self.random]).standard_normal((inputs, self.random))
        weights: Float32 = (drawn * (2.0 / inputs) ** 0.5).astype(np.float32)
        return weights


def spec_of_settings(nodes: NodeSettings) -> DesignSpec:
    """The design of a federation's settings, whose columns are `nodes.columns`."""
    return DesignSpec(nodes.features, nodes.powers, nodes.projected, nodes.drawn)


def make_design(shard: NodeShard, spec: DesignSpec, projection: Float64 | None = None) -> Float32:
    """Makes the design of all nodes of a shard, (n, D).

    projection: (q, directions), of all silos, where the spec has directions. No statistic of the silo decides a scale.
    """
    return complete_design(propagated_blocks(shard, spec, projection), spec)


def propagated_blocks(shard: NodeShard, spec: DesignSpec, projection: Float64 | None = None) -> dict[int, Float32]:
    """Computes P^k X of each power of the spec, projected where it has directions: power -> (n, block)."""
    if shard.features.shape[1] != spec.features:
        raise SettingsError(
            f"features of nodes: expected {spec.features} columns as the federation's, got {shard.features.shape[1]}: "
            "give the shard the federation's columns"
        )
    if (projection is None) != (spec.directions == 0):
        raise SettingsError("features of nodes: expected a projection where the design has directions, and none else")
    product = shard.features.toarray() if projection is None else shard.features @ projection
    product = np.asarray(product, dtype=np.float64)
    hops = propagate_nodes(shard, product, max(spec.powers), projection)
    powers = enumerate(chain((product,), hops))
    return {power: one.astype(np.float32) for power, one in powers if power in spec.powers}


def complete_design(blocks: dict[int, Float32], spec: DesignSpec) -> Float32:
    """Puts the constant before blocks of rows, power -> (m, block), and their ReLU features behind: (m, D)."""
    rows = [blocks[power] for power in spec.powers]
    linear = np.concatenate([np.ones((len(rows[0]), 1), np.float32), *rows], axis=1)
    if not spec.random:
        return linear
    return np.concatenate([linear, np.maximum(linear @ spec.random_weights, 0)], axis=1)


@dataclass(frozen=True)
class NodeGram:
    """Phi' Phi (D, D) and Phi' Y (D, c) of training nodes, Y with a one at each node's class."""

    square: Float64
    right: Float64

    @property
    def nodes(self) -> float:
        """The number of training nodes: the design's first column is constant."""
        return float(self.square[0, 0])

    def __add__(self, other: NodeGram) -> NodeGram:
        """Sums two silos."""
        return NodeGram(self.square + other.square, self.right + other.right)

    def times(self, weight: float) -> NodeGram:
        """Weighs each node."""
        return NodeGram(self.square * weight, self.right * weight)

    def of_columns(self, columns: Int64) -> NodeGram:
        """The matrices of some of the columns."""
        return NodeGram(self.square[np.ix_(columns, columns)], self.right[columns])


def count_gram(design: Float32, labels: Int64, classes: int) -> NodeGram:
    """Computes the Gram matrices of rows, (m, D), whose labels are known, (m,)."""
    rows = design.astype(np.float64)
    wanted = np.zeros((len(labels), classes))
    wanted[np.arange(len(labels)), labels] = 1.0
    return NodeGram(rows.T @ rows, rows.T @ wanted)


def gram_size(width: int, classes: int) -> int:
    """The count of numbers of a packed Gram matrix."""
    return width * (width + 1) // 2 + width * (classes - 1)


def pack_gram(gram: NodeGram) -> Float64:
    """Lists the upper triangle and the right side of all classes but the first, which follows from the constant."""
    return np.concatenate([gram.square[np.triu_indices(len(gram.square))], gram.right[:, 1:].ravel()])


def unpack_gram(values: Float64, width: int, classes: int) -> NodeGram:
    """The Gram matrices that were packed."""
    upper = width * (width + 1) // 2
    square = np.zeros((width, width))
    square[np.triu_indices(width)] = values[:upper]
    square = square + np.triu(square, 1).T
    others = values[upper:].reshape(width, classes - 1)
    return NodeGram(square, np.concatenate([square[:, :1] - others.sum(1, keepdims=True), others], axis=1))


def solve_ridge(gram: NodeGram, strengths: Sequence[float]) -> Float64:
    """Solves min |Y - Phi W|^2 + n strength mean(d) |W|^2 for each strength, (strengths, D, c).

    The constant, column 0, is not penalised. d: the columns' variances, whose mean makes strengths comparable.
    """
    nodes = max(gram.nodes, 1.0)
    means = gram.square[0, 1:] / nodes
    centred = gram.square[1:, 1:] - nodes * np.outer(means, means)
    wanted = gram.right[1:] - np.outer(means, gram.right[0])
    values, axes = np.linalg.eigh(centred)
    values = np.maximum(values, 0.0)
    scale = max(values.mean(), np.finfo(np.float64).tiny) if len(values) else 1.0
    turned = axes.T @ wanted
    found = np.zeros((len(strengths), *gram.right.shape))
    for number, strength in enumerate(strengths):
        found[number, 1:] = axes @ (turned / (values + strength * scale)[:, None])
        found[number, 0] = gram.right[0] / nodes - means @ found[number, 1:]
    return found


@dataclass(frozen=True)
class NodeChoice:
    """What a model of nodes is fitted with. own: multiple of the silo's own Gram matrix; ALONE: without the sum."""

    form: str
    strength: float
    own: float


@dataclass(frozen=True)
class NodeComparison:
    """The primary measure of the silo's own validation, alone and with the sum, and how many nodes it has."""

    alone: float
    together: float | None
    nodes: int


@dataclass(frozen=True)
class NodeModel:
    """A fitted model: plain arrays. weights: (D of the form, c); columns: of the design, that the form has."""

    spec: DesignSpec
    columns: Int64
    weights: Float32
    choice: NodeChoice
    comparison: NodeComparison | None = None
    temperature: float = 1.0

    def scores(self, design: Float32) -> Float32:
        """Scores of design rows, (m, c), before they are probabilities."""
        found: Float32 = design[:, self.columns] @ self.weights
        return found

    def predict(self, design: Float32) -> Float32:
        """Probabilities of design rows, (m, c)."""
        scaled = self.scores(design) * np.float32(self.temperature)
        raised = np.exp(scaled - scaled.max(1, keepdims=True))
        found: Float32 = raised / raised.sum(1, keepdims=True)
        return found


def fit_nodes(
    shard: NodeShard, design: Float32, spec: DesignSpec, pooled: NodeGram | None = None, own: NodeGram | None = None
) -> NodeModel:
    """Fits a silo's model: form, strength and own share by its own validation nodes, alone among the candidates."""
    train, valid = shard.nodes_of(TRAIN), shard.nodes_of(VALID)
    own = own or count_gram(design[train], shard.labels[train], len(shard.classes))
    best: dict[bool, tuple[float, NodeModel]] = {}
    for weight in (ALONE,) if pooled is None else (ALONE, *OWN_WEIGHTS):
        gram = own if pooled is None or weight == ALONE else pooled + own.times(weight)
        for form, columns in spec.forms.items():
            solved = solve_ridge(gram.of_columns(columns), STRENGTHS)
            for strength, weights in zip(STRENGTHS, solved, strict=True):
                score = primary_score(design[valid][:, columns] @ weights, shard.labels[valid], len(shard.classes))
                together = weight != ALONE
                if together not in best or score > best[together][0]:
                    choice = NodeChoice(form, strength, weight)
                    best[together] = score, NodeModel(spec, columns, weights.astype(np.float32), choice)
    alone, joined = best[False], best.get(True)
    chosen = alone if joined is None or alone[0] > joined[0] else joined
    comparison = NodeComparison(alone[0], None if joined is None else joined[0], len(valid))
    return replace(chosen[1], comparison=comparison)
