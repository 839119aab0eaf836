"""Collaboration graph of FedGSP: which clients learn from which, by the spectra of their graphs.

Yu. Homophily Heterogeneity Matters in Graph Federated Learning (FedGSP), appendix, section III. Shapes: M clients, d
numbers of a signature. P (M, d) are the clients' signatures at low frequencies, Q (M, d) those at high ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shared.method.graph import Float64
from shared.method.parameters import Array, Arrays

LEAST_SPREAD = 1e-12  # as a part of the widest column's spread; a column with less is the same for all clients
Terms = Literal["both", "low", "high"]


@dataclass(frozen=True)
class GraphRule:
    """Rule by which weights follow from signatures.

    weight_floor: kappa; the spread of a column counts as at least kappa times the mean spread; 0: as published.
    sharpness: g; gamma is g times the mean |t_ij|.
    gamma: fixed gamma in place of sharpness.
    least_own: least weight of a client's own parameters.
    uniform: all columns have equal weight.
    terms: low: similarity at low frequencies; high: dissimilarity at high frequencies; both: their difference.
    """

    weight_floor: float = 0.1
    sharpness: float = 1.0
    gamma: float | None = None
    least_own: float = 0.0
    uniform: bool = False
    terms: Terms = "both"


@dataclass(frozen=True)
class CollaborationStep:
    """Weights W (M, M) after a step, column weights r, s (d,), distances t.

    Distances t are (M, M).
    """

    weights: Float64
    low: Float64
    high: Float64
    distances: Float64

    @property
    def effective_columns(self) -> tuple[float, float]:
        """Effective numbers of columns, 1 / sum r^2 and 1 / sum s^2.

        0 if none counts.
        """
        sums = [float(np.square(one).sum()) for one in (self.low, self.high)]
        low, high = (1.0 / one if one > 0 else 0.0 for one in sums)
        return low, high


def begin_weights(clients: int) -> Float64:
    """Returns W_0, in which each client learns from all others alike, (M, M).

    A client learns nothing from itself, unless it is alone.
    """
    if clients == 1:
        return np.ones((1, 1))
    return (1.0 - np.eye(clients)) / (clients - 1)


def carry_weights(weights: Float64, known: Sequence[str], present: Sequence[str]) -> Float64:
    """Computes the present clients' W from that of the known clients.

    Newcomers begin as all do; the shares of leavers are divided.
    """
    carried = begin_weights(len(present))
    places = {name: place for place, name in enumerate(known)}
    kept = [(new, places[name]) for new, name in enumerate(present) if name in places]
    if kept:
        new, old = np.array(kept).T
        carried[np.ix_(new, new)] = weights[np.ix_(old, old)]
    sums = carried.sum(axis=1, keepdims=True)
    divided: Float64 = np.where(sums > 0, carried / np.where(sums > 0, sums, 1.0), begin_weights(len(present)))
    return divided


def advance_weights(low: Float64, high: Float64, weights: Float64, rule: GraphRule) -> CollaborationStep:
    """Advances R, S and W by one step, in this order.

    low, high: P and Q (M, d). weights: W before the step, (M, M).
    """
    laplacian = find_laplacian(weights)
    centred = [side - side.mean(axis=0) for side in (low, high)]  # distances stay, and equal columns become 0
    columns = [weigh_columns(find_spreads(side, laplacian), rule) for side in centred]
    near, far = (square_distances(side * column) for side, column in zip(centred, columns, strict=True))
    distances = {"both": near - far, "low": near, "high": -far}[rule.terms]
    return CollaborationStep(solve_weights(distances, rule), columns[0], columns[1], distances)


def find_laplacian(weights: Float64) -> Float64:
    """Computes the Laplacian of the symmetrised weights, (M, M).

    L = diag(Ws 1) - Ws, of Ws = (W + W') / 2.
    """
    # Paper: Eq. 10 takes W as symmetric, though its rows are projected one by one; here: (W + W') / 2, because then
    # p' L p is Eq. 10's half sum.
    both = (weights + weights.T) / 2
    laplacian: Float64 = np.diag(both.sum(axis=1)) - both
    return laplacian


def find_spreads(signatures: Float64, laplacian: Float64) -> Float64:
    """Computes e_l = p_l' L p_l (Eq. 10, 18) of each column, (d,)."""
    spreads: Float64 = np.maximum((signatures * (laplacian @ signatures)).sum(axis=0), 0.0)
    return spreads


def weigh_columns(spreads: Float64, rule: GraphRule) -> Float64:
    """Computes r_l = (1 / e_l) / sum(1 / e) (Eq. 9, 17), (d,).

    Zeros where all clients are alike in every column.
    """
    # Paper: s maximises what Eq. 11 says it minimises, as -sum s^2 n is concave; here: its formula, as published.
    # Paper: 1 / e_l as it is, so that columns that hardly differ take all weight; here: a floor under e_l, because
    # otherwise W is 1 / M to six digits on wide features. kappa = 0 is the paper's.
    widest = float(spreads.max(initial=0.0))
    if widest == 0.0:
        return np.zeros(len(spreads))
    if rule.uniform:
        return np.full(len(spreads), 1.0 / len(spreads))
    if rule.weight_floor > 0:
        counted, raised = np.ones(len(spreads), bool), np.maximum(spreads, rule.weight_floor * spreads.mean())
    else:
        counted, raised = spreads > LEAST_SPREAD * widest, spreads
    inverse = np.zeros(len(spreads))
    inverse[counted] = raised[counted].min() / raised[counted]  # without overflow
    weighed: Float64 = inverse / inverse.sum()
    return weighed


def square_distances(rows: Float64) -> Float64:
    """Computes |a_i - a_j|^2 of every two rows, (M, M).

    Products of rows take no (M, M, d) array.
    """
    products = rows @ rows.T
    lengths = np.diag(products)
    found = np.maximum(lengths[:, None] + lengths - products - products.T, 0.0)
    np.fill_diagonal(found, 0.0)
    return found


def solve_weights(distances: Float64, rule: GraphRule) -> Float64:
    """Projects -t_i / (2 gamma) on the simplex (Eq. 19 to 34), (M, M).

    The diagonal is `least_own` at least.
    """
    clients = len(distances)
    gamma = rule.gamma
    if gamma is None:
        others = np.abs(distances).sum() / max(1, clients * (clients - 1))
        gamma = rule.sharpness * float(others)
    wished = -distances / (2.0 * gamma) if gamma > 0 else np.zeros_like(distances)
    own = np.eye(clients) * min(1.0, rule.least_own)
    # w_ii >= a is the projection of what is left, 1 - a, around the shifted point.
    weights: Float64 = project_on_simplex(wished - own, 1.0 - min(1.0, rule.least_own)) + own
    return weights


def project_on_simplex(rows: Float64, total: float = 1.0) -> Float64:
    """Projects rows on numbers >= 0 that sum to `total`, by sorting, (M, M)."""
    shifted = rows - rows.max(axis=1, keepdims=True)  # the projection stays, and no sum loses its digits
    descending = -np.sort(-shifted, axis=1)
    excess = descending.cumsum(axis=1) - total
    counts = np.arange(1, rows.shape[1] + 1)
    positive = np.maximum((descending * counts > excess).sum(axis=1), 1)
    level = np.take_along_axis(excess, positive[:, None] - 1, axis=1) / positive[:, None]
    found = np.maximum(shifted - level, 0.0)
    sums = found.sum(axis=1, keepdims=True)
    scaled: Float64 = found * np.where(sums > 0, total / np.where(sums > 0, sums, 1.0), 1.0)
    return scaled


ROW = "weights."
"""Prefix of the names of W's rows in a state's memory, before the client's name: (K, M), M in the order of names."""
COLUMNS = "effective_columns"
"""In the memory: 1 / sum r^2 and 1 / sum s^2 of each order, (2, K)."""


@dataclass(frozen=True)
class Collaboration:
    """Weights by which clients learn from each other, by order, (K, M, M).

    clients: in the order of their names. columns: effective ones, (2, K).
    """

    clients: tuple[str, ...]
    weights: Float64
    columns: Float64

    @property
    def overall(self) -> Float64:
        """Mean of the weights over orders, for all tensors but the filter, (M, M)."""
        mean: Float64 = self.weights.mean(axis=0)
        return mean

    def remember(self) -> dict[str, Array]:
        """Returns the arrays of the state's memory: a row for each client."""
        rows = {ROW + name: self.weights[:, place].astype(np.float32) for place, name in enumerate(self.clients)}
        return {**rows, COLUMNS: self.columns.astype(np.float32)}


def recall_collaboration(memory: Arrays) -> Collaboration | None:
    """Reads W of the previous round from the state's memory; None before the first round."""
    clients = tuple(sorted(name.removeprefix(ROW) for name in memory if name.startswith(ROW)))
    if not clients:
        return None
    rows = [np.asarray(memory[ROW + name], dtype=np.float64) for name in clients]
    return Collaboration(clients, np.stack(rows, axis=1), np.asarray(memory[COLUMNS], dtype=np.float64))
