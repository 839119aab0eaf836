"""Figures of methods on silos of node graphs: means, harmed silos, intervals over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.nodes.cuts import DividedGraph
from benchmarks.nodes.methods import SiloScores
from client_service.data.node_graphs import TEST
from client_service.evaluation.node_measures import measure_nodes
from client_service.models.nodes.calibration import measure_reliability
from client_service.models.nodes.measures import primary_score
from shared.method.graph import Float64
from shared.method.parameters import Float32

DRAWS = 200  # of test nodes, with replacement, for an interval
LEVEL = (2.5, 97.5)
Int64 = NDArray[np.int64]
TestNodes = list[tuple[Float32, Int64]]
"""Scores and labels of the test nodes, by silo."""


def select_test_nodes(given: DividedGraph, found: SiloScores) -> TestNodes:
    """Takes the test nodes of each silo."""
    tested = []
    for silo, scores in zip(given.silos, found.scores, strict=True):
        rows = silo.nodes_of(TEST)
        tested.append((scores[rows], silo.labels[rows]))
    return tested


def silo_scores(tested: TestNodes) -> Float64:
    """Measures each silo's test nodes; nan where a silo's measure is not defined."""
    found = np.array([primary_score(scores, labels, scores.shape[1]) for scores, labels in tested])
    return np.where(np.isfinite(found), found, np.nan)


def describe_scores(given: DividedGraph, found: SiloScores) -> dict[str, Any]:
    """Measures one draw: the mean over silos, weighted by nodes too, and both measures."""
    tested = select_test_nodes(given, found)
    values, sizes = silo_scores(tested), np.array([len(labels) for _, labels in tested])
    both = [measure_nodes(scores, labels).values for scores, labels in tested]
    defined = np.isfinite(values)
    joined = np.concatenate([scores for scores, _ in tested]), np.concatenate([labels for _, labels in tested])
    reliability = measure_reliability(*joined)
    return {
        "mean": float(np.nanmean(values)),
        "by_nodes": float(np.average(values[defined], weights=sizes[defined])),
        **{name: float(np.mean([one[name] for one in both])) for name in both[0]},
        "calibration_error": reliability.error,
        "reliability": {
            "predicted": reliability.predicted,
            "observed": reliability.observed,
            "nodes": reliability.nodes,
        },
        "silos": values.round(4).tolist(),
        **({"choices": found.more["choices"]} if "choices" in found.more else {}),
    }


def compare_scores(pairs: Sequence[tuple[TestNodes, TestNodes]]) -> dict[str, Any]:
    """Compares two methods on the same test nodes: a silo's mean gain, with its interval.

    pairs: of each draw: the method, and the method it is compared with. harmed: silos whose measure is lower, of all
    draws.
    """
    gains = np.concatenate([silo_scores(one) - silo_scores(other) for one, other in pairs])
    gains = gains[np.isfinite(gains)]
    generator, draws = np.random.default_rng(0), []
    for _ in range(DRAWS):
        found = []
        for one, other in pairs:
            for (scores, labels), (others, _) in zip(one, other, strict=True):
                rows = generator.integers(0, max(len(labels), 1), len(labels))
                classes = scores.shape[1]
                drawn = primary_score(scores[rows], labels[rows], classes)
                found.append(drawn - primary_score(others[rows], labels[rows], classes))
        draws.append(np.mean([value for value in found if np.isfinite(value)]))
    return {
        "gain": float(gains.mean()),
        "interval": [float(value) for value in np.percentile(draws, LEVEL)],
        "harmed": int((gains < 0).sum()),
        "worst": float(gains.min()),
        "silos": len(gains),
    }


def mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    """Computes the mean and the deviation over draws."""
    return {"mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}
