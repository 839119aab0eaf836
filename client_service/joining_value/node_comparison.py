"""Comparison of a finished run with the closed form of the silo's own nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, VALID, NodeShard
from client_service.evaluation.node_measures import NODE_LABELS, NodeContributions, choose_primary, node_contributions
from client_service.joining_value.comparison import FEW_USERS, NORMAL
from client_service.joining_value.messages import ComparisonOut, CurveOut, FigureOut, GraphQualityOut, GroupOut
from client_service.model_store.node_models import ServedNodes
from client_service.models.nodes.calibration import measure_reliability
from shared.method.graph import Float64

Int64 = NDArray[np.int64]
WHOLE = "all nodes"
DEGREES = ("nodes with few neighbours", "nodes with a middling number", "nodes with many neighbours")


def compare_nodes(shard: NodeShard, served: ServedNodes) -> ComparisonOut:
    """Compares the primary measure on test nodes, in all and by number of neighbours.

    The gain is on validation nodes.

    Of the area under the curve the intervals are those of DeLong et al. (1988), in which both ways share their nodes.
    """
    test, valid = shard.nodes_of(TEST), shard.nodes_of(VALID)
    counts = np.diff(shard.adjacency.indptr)[test]
    low, high = np.quantile(counts, (1 / 3, 2 / 3)) if len(counts) else (0.0, 0.0)
    parts = (counts <= low, (counts > low) & (counts <= high), counts > high)
    chosen = ((WHOLE, test), *((name, test[part]) for name, part in zip(DEGREES, parts, strict=True)))
    groups = (_group(name, shard, served, rows) for name, rows in chosen)
    ours, theirs = (node_contributions(one[valid], shard.labels[valid]) for one in (served.probabilities, served.alone))
    return ComparisonOut(
        measure=NODE_LABELS[choose_primary(len(shard.classes))].key,
        users=len(test),
        few=len(test) < FEW_USERS,
        groups=tuple(group for group in groups if group is not None),
        validation_gain=None if ours is None or theirs is None else _interval(ours.subtract(theirs)),
    )


def _group(name: str, shard: NodeShard, served: ServedNodes, rows: Int64) -> GroupOut | None:
    """Compares figures of a group of nodes; None if a measure is undefined."""
    counts = np.bincount(shard.labels[shard.nodes_of(TRAIN)], minlength=len(shard.classes)).astype(np.float64)
    labels = shard.labels[rows]
    ways: dict[str, Float64] = {
        "popularity": np.broadcast_to(counts, (len(rows), len(counts))),
        "alone": served.alone[rows],
        "federated": served.probabilities[rows],
    }
    found = {way: node_contributions(probabilities, labels) for way, probabilities in ways.items()}
    known = {way: one for way, one in found.items() if one is not None}
    if len(known) < len(ways):
        return None
    ours, alone = known["federated"], known["alone"]
    figures = {way: _interval(one, 0.0) for way, one in known.items()}
    return GroupOut(
        name=name, users=len(rows), **figures, gain=_interval(ours.subtract(alone)), ratio=_ratio(ours, alone)
    )


def _interval(values: NodeContributions, floor: float | None = None) -> FigureOut:
    error = NORMAL * values.standard_error()
    low = values.mean - error
    return FigureOut(
        mean=values.mean, low=low if floor is None else max(floor, low), high=min(1.0, values.mean + error)
    )


def _ratio(ours: NodeContributions, alone: NodeContributions) -> FigureOut | None:
    """Computes the ratio of both, with its interval by the delta method on the logarithm."""
    if min(ours.mean, alone.mean) <= 0.0 or min(map(len, ours.parts)) < 2:
        return None
    error = NORMAL * ours.subtract(alone, 1.0 / ours.mean, 1.0 / alone.mean).standard_error()
    ratio = ours.mean / alone.mean
    return FigureOut(mean=ratio, low=ratio * float(np.exp(-error)), high=ratio * float(np.exp(error)))


POINTS = 51  # of a curve


def describe_graph(shard: NodeShard, served: ServedNodes) -> GraphQualityOut:
    """Computes homophily and classes of the graph, and curves of the served model.

    Curves are of validation nodes.
    """
    valid = shard.nodes_of(VALID)
    chances, labels = served.probabilities[valid], shard.labels[valid]
    counts = np.bincount(shard.labels[shard.labels != UNKNOWN], minlength=len(shard.classes))
    known = measure_reliability(chances.astype(np.float32), labels) if len(labels) else None
    return GraphQualityOut(
        edge_homophily=shard.edge_homophily(),
        adjusted_homophily=adjust_homophily(shard),
        classes=dict(zip(shard.classes, counts.tolist(), strict=True)),
        answers=served.joining.answers,
        roc=draw_roc(chances, labels),
        reliability=None if known is None else CurveOut(x=known.predicted, y=known.observed),
        calibration_error=None if known is None else known.error,
    )


def adjust_homophily(shard: NodeShard) -> float | None:
    """Computes adjusted homophily (Platonov et al. 2023).

    0 if edges do not depend on labels, 1 if all join equal ones. Only edges whose two ends have known labels
    count; None if there is none, or if all of them are of one class.
    """
    sources, targets, _ = shard.list_edges()
    both = (shard.labels[sources] != UNKNOWN) & (shard.labels[targets] != UNKNOWN)
    ends = np.concatenate([shard.labels[sources[both]], shard.labels[targets[both]]])
    if not len(ends):
        return None
    shares = np.bincount(ends, minlength=len(shard.classes)) / len(ends)
    by_chance = float((shares**2).sum())
    equal = float(np.mean(shard.labels[sources[both]] == shard.labels[targets[both]]))
    return (equal - by_chance) / (1.0 - by_chance) if by_chance < 1.0 else None


def draw_roc(probabilities: Float64, labels: Int64) -> CurveOut | None:
    """Computes the share of true positives over that of false ones.

    Of two classes class 1 is measured, of more the mean of each against the others. None if no class has nodes
    within and without.
    """
    classes, grid = probabilities.shape[1], np.linspace(0.0, 1.0, POINTS)
    chosen = (1,) if classes == 2 else range(classes)
    curves = [
        _rates(probabilities[:, one], labels == one, grid) for one in chosen if 0 < np.sum(labels == one) < len(labels)
    ]
    if not curves:
        return None
    return CurveOut(x=tuple(grid.tolist()), y=tuple(np.mean(curves, axis=0).tolist()))


def _rates(scores: Float64, positive: NDArray[np.bool_], grid: Float64) -> Float64:
    """Interpolates the true positive rate at each false positive rate of the grid."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)  # equal scores have one threshold
    hits, misses = np.cumsum(positive[order])[last], np.cumsum(~positive[order])[last]
    true, false = np.append(0.0, hits / hits[-1]), np.append(0.0, misses / misses[-1])
    found: Float64 = np.interp(grid, false, true)
    found[0] = true[false <= 0.0].max()
    return found
