"""Corrects and smooths scores of nodes over edges by labels that are known.

Correct & Smooth. Huang, He, Singh, Lim, Benson. Combining Label Propagation and Simple Models Out-performs Graph Neural
Networks. ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.node_graphs import TRAIN, VALID, NodeShard
from client_service.models.nodes.measures import primary_score
from client_service.models.nodes.spectral_bases import propagation_matrix
from shared.method.graph import Float64
from shared.method.parameters import Float32

STEPS = 30
LEAST_GAIN = 0.1  # over the square root of the validation nodes: a gain below it is no reason to smooth
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Smoothing:
    """Shares of an error and of a score that come from a node's neighbours.

    corrected: of an error, 0 without correction. smoothed: of a score, 0 without smoothing.
    """

    corrected: float
    smoothed: float


SMOOTHINGS = tuple(Smoothing(one, other) for one in (0.0, 0.5, 0.8) for other in (0.0, 0.3, 0.6) if one or other)


def smooth_scores(shard: NodeShard, scores: Float32 | Float64, smoothing: Smoothing) -> Float64:
    """Spreads errors of training nodes, then the corrected scores, over edges.

    scores: (n, c). In the second step training nodes have their labels as scores.
    """
    # Paper: errors grow to the size of those of training nodes ("autoscale"); here: they are added as they arrive,
    # because the few training nodes of a silo have errors of the ridge that are small where it overfits.
    propagation, train = propagation_matrix(shard.adjacency), shard.nodes_of(TRAIN)
    found = scores.astype(np.float64)
    known = np.zeros_like(found)
    known[train, shard.labels[train]] = 1.0
    if smoothing.corrected:
        errors = np.zeros_like(found)
        errors[train] = known[train] - found[train]
        found = found + _spread(propagation, errors, smoothing.corrected)
    if smoothing.smoothed:
        found[train] = known[train]
        found = _spread(propagation, found, smoothing.smoothed)
    return found


def _spread(propagation: sparse.csr_array, given: Float64, share: float) -> Float64:
    """Approximates (1 - share) (I - share P)^-1 given, by iteration."""
    found = given
    for _ in range(STEPS):
        found = share * (propagation @ found) + (1.0 - share) * given
    return found


def choose_smoothing(shard: NodeShard, scores: Float32 | Float64) -> Smoothing | None:
    """Chooses the smoothing with the best validation; None if validation hardly gains."""
    valid, classes = shard.nodes_of(VALID), len(shard.classes)
    if not len(valid):
        return None
    best, least = None, primary_score(scores[valid], shard.labels[valid], classes) + LEAST_GAIN / len(valid) ** 0.5
    for one in SMOOTHINGS:
        score = primary_score(smooth_scores(shard, scores, one)[valid], shard.labels[valid], classes)
        if score > least:
            best, least = one, score
    return best
