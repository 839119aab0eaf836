"""Closed-form model of node labels: a ridge on propagated features.

Its Gram matrices can be summed over silos. Phi is the design of a silo's nodes, (n, D). Phi' Phi and Phi' Y of its
training nodes are all that a ridge needs, so that sums of them over silos give the ridge on all silos' training nodes.
A logistic regression has no such sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.node_graphs import TRAIN, UNKNOWN, VALID, NodeShard
from client_service.models.nodes.calibration import UNCALIBRATED, Calibration, calibrate
from client_service.models.nodes.logistic import fit_logistic, logistic_forms
from client_service.models.nodes.measures import primary_score
from client_service.models.nodes.spectral_bases import propagate_nodes, propagation_matrix
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Float32

Int64 = NDArray[np.int64]
STRENGTHS = tuple(10.0 ** (power / 2) for power in range(-10, 3))  # of the ridge, a mean eigenvalue
OWN_WEIGHTS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)  # multiples of a silo's own Gram matrix beside the sum of all
MOST_LOGISTIC_NODES = 5000  # for training, up to which a silo alone tries a logistic regression too
LEAST_SCALE = 1e-12  # of a column's squares
ALONE = float("inf")
LOGISTIC = "logistic "  # before the form of a logistic regression
# Over the square root of the number of validation nodes: candidates within this margin of the best count as equal.
TIE_MARGIN = 0.1
USUAL_NODES, USUAL_NODES_ALONE = 100, 20  # weight of the usual choice, in validation nodes


@dataclass(frozen=True)
class DesignSpec:
    """Columns of a design, alike in all silos.

    features: q. powers: of the propagation whose blocks P^k X the design has. directions: columns to which features are
    projected if they are many, else 0, which leaves them as they are. Projected features are those of unit rows, and
    the design has the mean over the powers instead of each. random: ReLU features of all blocks, drawn by the seed.
    """

    features: int
    powers: tuple[int, ...]
    directions: int = 0
    random: int = 0
    seed: int = 0

    @property
    def block(self) -> int:
        """Number of columns of one power."""
        return self.directions or self.features

    @property
    def linear(self) -> int:
        """Number of columns of all powers."""
        return self.block * (1 if self.directions else len(self.powers))

    @property
    def width(self) -> int:
        """D, number of columns of the design: a constant, the powers', the ReLU features."""
        return 1 + self.linear + self.random

    @cached_property
    def forms(self) -> dict[str, Int64]:
        """Forms of a model that one Gram matrix serves, each by its columns."""
        counts = (1,) if self.directions else range(1, len(self.powers) + 1)
        found = {f"linear{self.powers[count - 1]}": np.arange(1 + count * self.block) for count in counts}
        if self.directions:
            found = {"mean": np.arange(1 + self.block)}
        if self.random:
            found["random"] = np.arange(self.width)
        return found

    @cached_property
    def random_weights(self) -> Float32:
        """Draws the weights of the ReLU features, (1 + linear, random).

        The first row is a bias.
        """
        inputs = 1 + self.linear
        drawn = np.random.default_rng([self.seed, inputs, self.random]).standard_normal((inputs, self.random))
        weights: Float32 = (drawn * (2.0 / inputs) ** 0.5).astype(np.float32)
        return weights


def build_design_spec(nodes: NodeSettings) -> DesignSpec:
    """Returns the design of a federation's settings, whose columns are `nodes.columns`."""
    return DesignSpec(nodes.features, nodes.powers, nodes.projected, nodes.random_width)


def make_design(shard: NodeShard, spec: DesignSpec, projection: Float64 | None = None) -> Float32:
    """Makes the design of all nodes of a shard, (n, D).

    projection: (q, directions), of all silos, where the spec has directions. No statistic of the silo decides a scale.
    """
    return complete_design(propagated_blocks(shard, spec, projection), spec)


def propagated_blocks(shard: NodeShard, spec: DesignSpec, projection: Float64 | None = None) -> dict[int, Float32]:
    """Computes P^k X for each power k of the spec, projected where it has directions.

    Returns an array (n, block) by power.
    """
    if shard.features.shape[1] != spec.features:
        raise SettingsError(
            f"features of nodes: expected {spec.features} columns as the federation's, got {shard.features.shape[1]}: "
            "give the shard the federation's columns"
        )
    if (projection is None) != (spec.directions == 0):
        raise SettingsError("features of nodes: expected a projection where the design has directions, and none else")
    product = shard.features.toarray() if projection is None else unit_rows(shard.features) @ projection
    product = np.asarray(product, dtype=np.float64)
    hops = propagate_nodes(shard, product, max(spec.powers), projection)
    powers = enumerate(chain((product,), hops))
    return {power: one.astype(np.float32) for power, one in powers if power in spec.powers}


def unit_rows(features: sparse.csr_array) -> sparse.csr_array:
    """Scales each row to the length 1; a row of zeros stays."""
    wide = features.astype(np.float64)
    lengths = np.sqrt(np.asarray(wide.multiply(wide).sum(1)).ravel())
    scales = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return sparse.csr_array(sparse.diags_array(scales) @ wide)


def count_directions(shard: NodeShard, hops: int, drawn: Float64) -> Float64:
    """Computes Z' Z Omega, (q, r), Z the mean of P^k X of unit rows.

    hops: k is 0 to hops. drawn: Omega, (q, r).

    Summed over silos its columns span the directions to which features are projected. Those of X' X instead are .01
    worse on Cora and CiteSeer. P is symmetric, so that Z, which is dense, is never made.
    """
    propagation, features = propagation_matrix(shard.adjacency), unit_rows(shard.features)
    product: Float64 = features @ drawn
    for _ in range(2):
        total = product
        for _ in range(hops):
            product = propagation @ product
            total = total + product
        product = total / (hops + 1)
    found: Float64 = features.T @ product
    return found


def find_own_projection(shard: NodeShard, spec: DesignSpec) -> Float64 | None:
    """Computes the projection of features by a shard's own directions, (q, r); None without directions."""
    if not spec.directions:
        return None
    drawn = np.random.default_rng([spec.seed, spec.features, spec.directions])
    products = count_directions(shard, max(spec.powers), drawn.standard_normal((spec.features, spec.directions)))
    projection: Float64 = np.linalg.qr(products)[0]
    return projection


def complete_design(blocks: dict[int, Float32], spec: DesignSpec) -> Float32:
    """Joins a constant, the blocks of powers and their ReLU features, (m, D).

    blocks: power -> (m, block).
    """
    rows = [blocks[power] for power in spec.powers]
    if spec.directions:
        mean: Float64 = np.mean(rows, axis=0, dtype=np.float64)
        rows = [mean.astype(np.float32)]
    linear = np.concatenate([np.ones((len(rows[0]), 1), np.float32), *rows], axis=1)
    if not spec.random:
        return linear
    return np.concatenate([linear, np.maximum(linear @ spec.random_weights, 0)], axis=1)


@dataclass(frozen=True)
class NodeGram:
    """Gram matrices of training nodes: Phi' Phi (D, D) and Phi' Y (D, c).

    Y has a one at each node's class.
    """

    square: Float64
    right: Float64

    @property
    def nodes(self) -> float:
        """Number of training nodes: the design's first column is constant."""
        return float(self.square[0, 0])

    def __add__(self, other: NodeGram) -> NodeGram:
        """Adds the matrices of two silos."""
        return NodeGram(self.square + other.square, self.right + other.right)

    def weigh(self, weight: float) -> NodeGram:
        """Multiplies both matrices by the weight of a node."""
        return NodeGram(self.square * weight, self.right * weight)

    def select_columns(self, columns: Int64) -> NodeGram:
        """Selects the matrices of some of the columns."""
        return NodeGram(self.square[np.ix_(columns, columns)], self.right[columns])


def count_gram(design: Float32, labels: Int64, classes: int) -> NodeGram:
    """Computes the Gram matrices of rows, (m, D), whose labels are known, (m,)."""
    rows = design.astype(np.float64)
    wanted = np.zeros((len(labels), classes))
    wanted[np.arange(len(labels)), labels] = 1.0
    return NodeGram(rows.T @ rows, rows.T @ wanted)


@dataclass(frozen=True)
class Ridge:
    """Ridge regression whose strength is chosen later.

    values, axes: of the centred Gram matrix. turned: the centred right side along these axes.
    """

    gram: NodeGram
    means: Float64
    values: Float64
    axes: Float64
    turned: Float64

    @property
    def scale(self) -> float:
        """Mean eigenvalue, which makes strengths comparable; 1 if no column varies."""
        mean = float(self.values.mean()) if len(self.values) else 0.0
        return mean if mean > LEAST_SCALE else 1.0

    def solve(self, strength: float) -> Float64:
        """Computes weights (D, c) that minimise |Y - Phi W|^2 + strength scale |W|^2.

        The weight of the constant, column 0, has no penalty.
        """
        found = self.axes @ (self.turned / (self.values + strength * self.scale)[:, None])
        constant = self.gram.right[0] / max(self.gram.nodes, 1.0) - self.means @ found
        return np.concatenate([constant[None], found])

    def cross_validation(self, strength: float) -> float:
        """Computes the generalised cross-validation of a strength: less is better.

        No validation node is needed.
        """
        added = self.values + strength * self.scale
        nodes = max(self.gram.nodes, 1.0)
        sizes = self.gram.right[0]
        around = float(sizes.sum() - (sizes**2).sum() / nodes)
        fitted = float((self.turned**2 * ((2.0 * added - self.values) / added**2)[:, None]).sum())
        free = nodes - 1.0 - float((self.values / added).sum())
        return max(around - fitted, 0.0) / free**2 if free > 0 else float("inf")


def decompose_ridge(gram: NodeGram) -> Ridge:
    """Decomposes the centred Gram matrix once, for all strengths."""
    nodes = max(gram.nodes, 1.0)
    means = gram.square[0, 1:] / nodes
    centred = gram.square[1:, 1:] - nodes * np.outer(means, means)
    values, axes = np.linalg.eigh(centred)
    turned = axes.T @ (gram.right[1:] - np.outer(means, gram.right[0]))
    return Ridge(gram, means, np.maximum(values, 0.0), axes, turned)


def solve_ridge(gram: NodeGram, strengths: Sequence[float]) -> Float64:
    """Solves the ridge for each strength: (strengths, D, c)."""
    ridge = decompose_ridge(gram)
    return np.stack([ridge.solve(strength) for strength in strengths])


@dataclass(frozen=True)
class NodeChoice:
    """Choice with which a model of nodes is fitted.

    own: multiple of the silo's own Gram matrix; ALONE: without the sum of all silos.

    It is the best candidate; the model is the mean of those that validation cannot tell from it, of which count are.
    """

    form: str
    strength: float
    own: float
    count: int = 1


@dataclass(frozen=True)
class NodeComparison:
    """Primary measure on the silo's own validation nodes, alone and with the sum.

    nodes: how many validation nodes there are.
    """

    alone: float
    together: float | None
    nodes: int


@dataclass(frozen=True)
class NodeModel:
    """Fitted closed form, as plain arrays.

    weights: of all columns of the design, (D, c), 0 of those that the form does not use. parts: the candidates whose
    weighted mean they are, each with its share.
    """

    spec: DesignSpec
    weights: Float32
    choice: NodeChoice
    comparison: NodeComparison | None = None
    calibration: Calibration = UNCALIBRATED
    parts: tuple[tuple[NodeChoice, float], ...] = ()

    @property
    def linear(self) -> Float32:
        """Weights of P^k X by the spec's powers, (powers, block, c).

        Projected features have one block, the mean of the powers: each power has its part of the weights.
        """
        powers, classes = len(self.spec.powers), self.weights.shape[1]
        rows = self.weights[1 : 1 + self.spec.linear]
        if self.spec.directions:
            return np.stack([rows / np.float32(powers)] * powers)
        return rows.reshape(powers, self.spec.block, classes)

    def scores(self, design: Float32) -> Float32:
        """Computes scores of design rows, (m, c), before calibration."""
        found: Float32 = design @ self.weights
        return found

    def predict(self, design: Float32) -> Float32:
        """Computes probabilities of design rows, (m, c)."""
        return self.calibration.probabilities(self.scores(design))


@dataclass(frozen=True)
class _Candidate:
    score: float
    choice: NodeChoice
    weights: Float64  # (D, c)
    parts: tuple[tuple[NodeChoice, float], ...] = ()  # whose mean the weights are, each with its share


def fit_nodes(
    shard: NodeShard,
    design: Float32,
    spec: DesignSpec,
    pooled: NodeGram | None = None,
    own: NodeGram | None = None,
    *,
    logistic: bool = True,
) -> NodeModel:
    """Fits a silo's model; its validation nodes choose form, strength and own share.

    The models of the silo alone are among the candidates. design: of all nodes, (n, D). pooled: the sum of all silos'
    matrices; without it the silo is alone. logistic: may the silo alone have a logistic regression where it is clearly
    better than a ridge?
    """
    train, valid = shard.nodes_of(TRAIN), shard.nodes_of(VALID)
    own = own or count_gram(design[train], shard.labels[train], len(shard.classes))
    alone = _choose(shard, design, list(_candidates(shard, design, spec, {ALONE: own})))
    if logistic and len(valid) and len(train) <= MOST_LOGISTIC_NODES:
        regressed = list(_logistic_candidates(shard, design, spec))
        if (
            regressed
            and (found := _choose(shard, design, regressed)).score > alone.score + TIE_MARGIN / len(valid) ** 0.5
        ):
            alone = found
    chosen, together = alone, None
    if pooled is not None:
        grams = {weight: pooled + own.weigh(weight) for weight in OWN_WEIGHTS}
        joined = _choose(shard, design, list(_candidates(shard, design, spec, grams)))
        together = joined.score
        # The silo's own model must be better by more than one validation node, else the sum of all silos is used.
        if not (len(valid) and alone.score > joined.score + 1.0 / len(valid)) and not (
            np.isnan(joined.score) and _contradicts(joined.weights, design[train], shard.labels[train])
        ):
            chosen = joined
    comparison = NodeComparison(alone.score, together, len(valid))
    model = NodeModel(spec, chosen.weights.astype(np.float32), chosen.choice, comparison, parts=chosen.parts)
    return replace(model, calibration=calibrate(model.scores(design[valid]), shard.labels[valid]))


def refit_nodes(model: NodeModel, shard: NodeShard, design: Float32, pooled: NodeGram | None = None) -> NodeModel:
    """Fits a chosen model again on all labelled nodes of the silo.

    pooled: as in `fit_nodes`, of training nodes. Form, strength, own share and calibration stay as chosen.
    """
    known, train = np.flatnonzero(shard.labels != UNKNOWN), shard.splits == TRAIN
    labels, classes = shard.labels, len(shard.classes)
    whole = count_gram(design[known], labels[known], classes)
    held = known[~train[known]]
    more = count_gram(design[held], labels[held], classes)
    weights = np.zeros((model.spec.width, classes))
    ordered = sorted(model.parts, key=lambda part: (part[0].form, part[0].own))
    for (form, own), parts in groupby(ordered, key=lambda part: (part[0].form, part[0].own)):
        columns = model.spec.forms[form.removeprefix(LOGISTIC)]
        shares = {choice.strength: share for choice, share in parts}
        if form.startswith(LOGISTIC):
            solved: Iterable[tuple[float, Float64]] = fit_logistic(
                design[known][:, columns].astype(np.float64), labels[known], classes
            )
        else:
            gram = whole if own == ALONE or pooled is None else pooled + more + whole.weigh(own)
            ridge = decompose_ridge(gram.select_columns(columns))
            solved = ((strength, ridge.solve(strength)) for strength in shares)
        for strength, found in solved:
            weights[columns] += shares.get(strength, 0.0) * found
    return replace(model, weights=weights.astype(np.float32))


def _contradicts(weights: Float64, rows: Float32, labels: Int64) -> bool:
    """Tells whether weights are worse than a guess on a silo's training nodes.

    It is for silos without validation nodes. A guess: of two classes an area of a half, else the most frequent class;
    less by the error of so few nodes.
    """
    classes = weights.shape[1]
    score = primary_score(rows.astype(np.float64) @ weights, labels, classes)
    guess = 0.5 if classes == 2 else float(np.bincount(labels).max(initial=0)) / max(len(labels), 1)
    return bool(np.isfinite(score)) and score < guess - 0.5 / max(len(labels), 1) ** 0.5


def _logistic_candidates(shard: NodeShard, design: Float32, spec: DesignSpec) -> Iterator[tuple[_Candidate, float]]:
    """Yields logistic regressions of the silo alone.

    Without a validation node the strongest penalty is the usual one.
    """
    train, valid = shard.nodes_of(TRAIN), shard.nodes_of(VALID)
    labels, classes = shard.labels, len(shard.classes)
    for form in logistic_forms(list(spec.forms)):
        columns = spec.forms[form]
        rows = design[train][:, columns].astype(np.float64)
        for strength, solved in fit_logistic(rows, labels[train], classes):
            weights = np.zeros((spec.width, classes))
            weights[columns] = solved
            score = primary_score(design[valid].astype(np.float64) @ weights, labels[valid], classes)
            yield _Candidate(score, NodeChoice(f"{LOGISTIC}{form}", strength, ALONE), weights), -strength


def _candidates(
    shard: NodeShard, design: Float32, spec: DesignSpec, grams: dict[float, NodeGram]
) -> Iterator[tuple[_Candidate, float]]:
    """Yields each form with each strength and own share, and its generalised cross-validation."""
    valid = shard.nodes_of(VALID)
    rows, labels, classes = design[valid].astype(np.float64), shard.labels[valid], len(shard.classes)
    for weight, gram in grams.items():
        for form, columns in spec.forms.items():
            ridge = decompose_ridge(gram.select_columns(columns))
            for strength in STRENGTHS:
                weights = np.zeros((spec.width, classes))
                weights[columns] = ridge.solve(strength)
                score = primary_score(rows @ weights, labels, classes)
                choice = NodeChoice(form, strength, weight)
                yield _Candidate(score, choice, weights), ridge.cross_validation(strength)


def _choose(shard: NodeShard, design: Float32, candidates: list[tuple[_Candidate, float]]) -> _Candidate:
    """Averages the candidates that validation nodes cannot tell from the best, and the usual one.

    The fewer validation nodes, the more the usual candidate weighs.

    The usual one is what generalised cross-validation chooses without a validation node, of the first of the grams.
    """
    valid = shard.nodes_of(VALID)
    labels, classes = shard.labels[valid], len(shard.classes)
    first = candidates[0][0].choice.own
    usual = min((one for one in candidates if one[0].choice.own == first), key=lambda one: one[1])[0]
    best = max((one for one, _ in candidates), key=lambda one: one.score)
    if best.score == float("-inf"):
        return replace(usual, score=float("nan"), parts=((usual.choice, 1.0),))
    least = best.score - TIE_MARGIN / len(valid) ** 0.5
    near = [one for one, _ in candidates if one.score >= least]
    usual_nodes = USUAL_NODES_ALONE if first == ALONE else USUAL_NODES
    share = usual_nodes / (usual_nodes + len(valid))
    weights = (1.0 - share) * np.mean([one.weights for one in near], axis=0) + share * usual.weights
    score = primary_score(design[valid].astype(np.float64) @ weights, labels, classes)
    shares = {one.choice: (1.0 - share) / len(near) for one in near}
    shares[usual.choice] = shares.get(usual.choice, 0.0) + share
    return _Candidate(score, replace(best.choice, count=len(near)), weights, tuple(shares.items()))
