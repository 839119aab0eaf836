"""Scores visits by SR-GNN and TAGNN in numpy.

The scores equal those of the trained networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_service.data.prefixes import Int64, Prefixes

Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]
PIECE: Final = 1 << 18  # attention weights, of items over a visit's items, that are in memory at once
LEAST_ITEMS: Final = 256  # least number of items in a piece
NETWORK: Final = (
    "edges.incoming.weight",
    "edges.incoming.bias",
    "edges.outgoing.weight",
    "edges.outgoing.bias",
    "edges.incoming_bias",
    "edges.outgoing_bias",
    "cell.weight_ih",
    "cell.weight_hh",
    "cell.bias_ih",
    "cell.bias_hh",
    "attention.last.weight",
    "attention.last.bias",
    "attention.each.weight",
    "attention.each.bias",
    "attention.query.weight",
    "transform.weight",
    "transform.bias",
)
"""Parameters of SR-GNN beside the item table, by their names."""
TARGET: Final = "target.weight"  # the parameter that TAGNN has besides


@dataclass(frozen=True)
class VisitGraphs:
    """Graphs of B visits over up to n distinct items each.

    nodes: items, (B, n), 0 in unused places. counts: clicks on each item, (B, n), 0 in unused places. last: the place
    of the last click's item, (B,). incoming, outgoing: (B, n, n), as in `SessionGraphs`.
    """

    nodes: Int64
    counts: Float32
    last: Int64
    incoming: Float32
    outgoing: Float32


def visit_graphs(clicks: Int64, lengths: Int64) -> VisitGraphs:
    """Builds the graphs of visits.

    clicks: (B, L), with any numbers behind the end of a visit. lengths: (B,), 1 or more.
    """
    visits = np.arange(len(clicks))
    inside = np.arange(clicks.shape[1]) < lengths[:, None]
    behind = np.iinfo(np.int64).max
    masked = np.where(inside, clicks, behind)
    order = np.argsort(masked, axis=1, kind="stable")
    ordered = np.take_along_axis(masked, order, 1)
    rank = np.zeros_like(ordered)
    np.cumsum(ordered[:, 1:] != ordered[:, :-1], axis=1, out=rank[:, 1:])
    real = ordered != behind
    count = int(rank[real].max()) + 1
    places = np.empty_like(rank)
    np.put_along_axis(places, order, rank, 1)
    rows, columns = np.nonzero(inside)
    found = places[rows, columns]
    nodes = np.zeros((len(clicks), count), np.int64)
    nodes[rows, found] = clicks[rows, columns]
    counts = np.bincount(rows * count + found, minlength=len(clicks) * count).astype(np.float32)
    edges = np.zeros((len(clicks), count, count), np.float32)
    later = columns > 0
    edges[rows[later], places[rows[later], columns[later] - 1], found[later]] = 1.0
    return VisitGraphs(
        nodes,
        counts.reshape(len(clicks), count),
        places[visits, lengths - 1],
        edges.transpose(0, 2, 1) / np.maximum(edges.sum(1), 1.0)[:, :, None],
        edges / np.maximum(edges.sum(2), 1.0)[:, :, None],
    )


class SessionNetwork:
    """Trained SR-GNN or TAGNN that no longer changes.

    vectors: rows of its item table that belong to the silo's items, (N, d). Clicks on one item have the same vector,
    so that everything is computed once for each distinct item of a visit.
    """

    def __init__(self, parameters: Mapping[str, Float32], vectors: Float32) -> None:
        own = {name: np.ascontiguousarray(parameters[name], np.float32) for name in NETWORK}
        self.vectors = vectors
        self._width = vectors.shape[1]
        self._linear = np.concatenate([own["edges.incoming.weight"], own["edges.outgoing.weight"]]).T.copy()
        self._linear_bias = np.concatenate([own["edges.incoming.bias"], own["edges.outgoing.bias"]])
        self._message_bias = np.concatenate([own["edges.incoming_bias"], own["edges.outgoing_bias"]])
        self._input, self._input_bias = own["cell.weight_ih"].T.copy(), own["cell.bias_ih"]
        self._state, self._state_bias = own["cell.weight_hh"].T.copy(), own["cell.bias_hh"]
        self._last, self._each = own["attention.last.weight"].T.copy(), own["attention.each.weight"].T.copy()
        self._attention_bias = own["attention.last.bias"] + own["attention.each.bias"]
        self._query = own["attention.query.weight"][0]
        self._transform, self._transform_bias = own["transform.weight"].T.copy(), own["transform.bias"]
        target = parameters.get(TARGET)
        self._target = None if target is None else np.ascontiguousarray(target.T, np.float32)

    def score(self, examples: Prefixes) -> Float32:
        """Scores all items after each visit, (B, N)."""
        with np.errstate(over="ignore", invalid="ignore"):  # callers detect a diverged model by its scores
            graphs = visit_graphs(*examples.pad())
            hidden = self._propagate(graphs)
            visits = self._visit_vectors(hidden, graphs)
            if self._target is None:
                return self._inner_products(visits)
            return self._attend_items(visits, hidden, graphs.counts)

    def _propagate(self, graphs: VisitGraphs) -> Float32:
        """Updates the items of a visit by their neighbours before and after, (B, n, d)."""
        nodes, width = self.vectors[graphs.nodes], self._width
        sent = nodes @ self._linear + self._linear_bias
        messages = np.concatenate([graphs.incoming @ sent[:, :, :width], graphs.outgoing @ sent[:, :, width:]], axis=2)
        messages += self._message_bias
        given = messages @ self._input + self._input_bias
        known = nodes @ self._state + self._state_bias
        gates = sigmoid(given[:, :, : 2 * width] + known[:, :, : 2 * width])
        reset, update = gates[:, :, :width], gates[:, :, width:]
        candidate = np.tanh(given[:, :, 2 * width :] + reset * known[:, :, 2 * width :])
        found: Float32 = candidate + update * (nodes - candidate)
        return found

    def _visit_vectors(self, hidden: Float32, graphs: VisitGraphs) -> Float32:
        """Computes the vector of each visit, (B, d).

        The vector combines the last click with the sum of all clicks, weighted by the last click's attention.
        """
        last = hidden[np.arange(len(hidden)), graphs.last]
        seen = sigmoid((last @ self._last + self._attention_bias)[:, None] + hidden @ self._each)
        weights = (seen @ self._query) * graphs.counts
        pooled = (weights[:, None] @ hidden)[:, 0]
        found: Float32 = np.concatenate([pooled, last], axis=1) @ self._transform + self._transform_bias
        return found

    def _inner_products(self, visits: Float32) -> Float32:
        found: Float32 = visits @ self.vectors.T
        return found

    def _attend_items(self, visits: Float32, hidden: Float32, counts: Float32) -> Float32:
        """Scores each item by its own attention over the clicks of a visit, (B, N).

        The score of item t is e_t (s + sum_i beta_ti h_i), beta_t = softmax_i(e_t^T W h_i) over the clicks i.
        """
        assert self._target is not None
        found = self._inner_products(visits)
        size, nodes = hidden.shape[:2]
        # One product gives both the logits e_t^T W h_i and the values e_t^T h_i.
        both = np.concatenate([hidden @ self._target, hidden]).reshape(-1, self._width)
        away = np.where(counts > 0, np.float32(0), np.float32(-np.inf))[:, :, None]
        step = max(LEAST_ITEMS, PIECE // (size * nodes))
        for first in range(0, len(self.vectors), step):
            piece = slice(first, first + step)
            near, given = (both @ self.vectors[piece].T).reshape(2, size, nodes, -1)
            near += away
            near -= near.max(axis=1, keepdims=True)
            np.exp(near, out=near)
            near *= counts[:, :, None]
            given *= near
            found[:, piece] += given.sum(axis=1) / near.sum(axis=1)
        return found


def sigmoid(values: Float32) -> Float32:
    """Computes 1 / (1 + exp(-x)) without an overflow."""
    found: Float32 = np.tanh(values * np.float32(0.5))
    found += np.float32(1.0)
    found *= np.float32(0.5)
    return found


def parameter_arrays(parameters: Mapping[str, NDArray[Any]]) -> dict[str, Float32]:
    """Selects the parameters of a compiled network, without the item table.

    KeyError for a missing parameter.
    """
    found = {name: np.asarray(parameters[name], np.float32) for name in NETWORK}
    if TARGET in parameters:
        found[TARGET] = np.asarray(parameters[TARGET], np.float32)
    return found
