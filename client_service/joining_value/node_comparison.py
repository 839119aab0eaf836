"""Compares a finished run with the closed form of the silo's own nodes, with intervals over nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_service.data.node_graphs import TEST, TRAIN, VALID, NodeShard
from client_service.evaluation.node_measures import NODE_LABELS, PerNode, choose_primary, contributions
from client_service.joining_value.comparison import FEW_USERS, NORMAL
from client_service.joining_value.messages import ComparisonOut, FigureOut, GroupOut
from client_service.model_store.node_models import ServedNodes
from shared.method.graph import Float64

Int64 = NDArray[np.int64]
WHOLE = "all nodes"
DEGREES = ("nodes with few neighbours", "nodes with a middling number", "nodes with many neighbours")


def compare_nodes(shard: NodeShard, served: ServedNodes) -> ComparisonOut:
    """The primary measure of each on test nodes, and by how many neighbours they have, and the gain on validation.

    Of the area under the curve the intervals are those of DeLong et al. (1988), in which both ways share their nodes.
    """
    test, valid = shard.nodes_of(TEST), shard.nodes_of(VALID)
    counts = np.diff(shard.adjacency.indptr)[test]
    low, high = np.quantile(counts, (1 / 3, 2 / 3)) if len(counts) else (0.0, 0.0)
    parts = (counts <= low, (counts > low) & (counts <= high), counts > high)
    chosen = ((WHOLE, test), *((name, test[part]) for name, part in zip(DEGREES, parts, strict=True)))
    groups = (_group(name, shard, served, rows) for name, rows in chosen)
    ours, theirs = (contributions(one[valid], shard.labels[valid]) for one in (served.probabilities, served.alone))
    return ComparisonOut(
        measure=NODE_LABELS[choose_primary(len(shard.classes))].key,
        users=len(test),
        few=len(test) < FEW_USERS,
        groups=tuple(group for group in groups if group is not None),
        validation_gain=None if ours is None or theirs is None else _interval(ours.less(theirs)),
    )


def _group(name: str, shard: NodeShard, served: ServedNodes, rows: Int64) -> GroupOut | None:
    """Figures of these nodes; None where their measure says nothing."""
    counts = np.bincount(shard.labels[shard.nodes_of(TRAIN)], minlength=len(shard.classes)).astype(np.float64)
    labels = shard.labels[rows]
    ways: dict[str, Float64] = {
        "popularity": np.broadcast_to(counts, (len(rows), len(counts))),
        "alone": served.alone[rows],
        "federated": served.probabilities[rows],
    }
    found = {way: contributions(probabilities, labels) for way, probabilities in ways.items()}
    known = {way: one for way, one in found.items() if one is not None}
    if len(known) < len(ways):
        return None
    ours, alone = known["federated"], known["alone"]
    figures = {way: _interval(one, 0.0) for way, one in known.items()}
    return GroupOut(name=name, users=len(rows), **figures, gain=_interval(ours.less(alone)), ratio=_ratio(ours, alone))


def _interval(values: PerNode, floor: float | None = None) -> FigureOut:
    error = NORMAL * values.deviation()
    low = values.mean - error
    return FigureOut(
        mean=values.mean, low=low if floor is None else max(floor, low), high=min(1.0, values.mean + error)
    )


def _ratio(ours: PerNode, alone: PerNode) -> FigureOut | None:
    """The ratio of both, and its interval by the delta method on the logarithm."""
    if min(ours.mean, alone.mean) <= 0.0 or min(map(len, ours.parts)) < 2:
        return None
    error = NORMAL * ours.less(alone, 1.0 / ours.mean, 1.0 / alone.mean).deviation()
    ratio = ours.mean / alone.mean
    return FigureOut(mean=ratio, low=ratio * float(np.exp(-error)), high=ratio * float(np.exp(error)))
