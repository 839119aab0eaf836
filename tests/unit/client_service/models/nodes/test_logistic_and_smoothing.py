"""Logistic regressions that a silo alone may have, and Correct & Smooth: what they do, and where they have nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from client_service.data.node_graphs import TRAIN, VALID, NodeShard, build_adjacency
from client_service.models.nodes.closed_form import ALONE, DesignSpec, fit_nodes, make_design
from client_service.models.nodes.logistic import fit_logistic, logistic_forms
from client_service.models.nodes.smoothing import SMOOTHINGS, Smoothing, choose_smoothing, smooth_scores


def rare_class(nodes: int = 600, seed: int = 0) -> NodeShard:
    """Nodes of which few are of class 1, told by a curved function of one feature that is skewed."""
    rng = np.random.default_rng(seed)
    values = rng.exponential(1.0, (nodes, 4)).astype(np.float32) ** 2
    labels = (values[:, 0] - values[:, 1] + rng.standard_normal(nodes) > 4.0).astype(np.int64)
    edges = build_adjacency(*(rng.integers(0, nodes, 900) for _ in range(2)), np.ones(900, np.float32), nodes)
    splits = np.where(np.arange(nodes) % 2, TRAIN, VALID).astype(np.int8)
    names = [str(number) for number in range(4)]
    ids = [f"{number:04d}" for number in range(nodes)]
    return NodeShard("rare", ids, sparse.csr_array(values), names, edges, labels, ("no", "yes"), splits)


def test_a_logistic_regression_is_where_its_gradient_is_zero() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.ones((80, 1)), rng.standard_normal((80, 3))], axis=1)
    labels = rng.integers(0, 3, 80)
    for strength, weights in fit_logistic(rows, labels, 3):
        chances = np.exp(rows @ weights)
        chances /= chances.sum(1, keepdims=True)
        gradient = rows.T @ (chances - np.eye(3)[labels])
        penalty = strength * 80 * rows[:, 1:].var(0).mean()
        gradient[1:] += penalty * (weights - weights[:, :1])[1:]  # the penalty is of the others beside the first class
        assert np.abs(gradient[:, 1:]).max() < 2e-3 and np.allclose(weights.sum(1), 0.0)


def test_the_silo_alone_has_the_better_of_both_and_a_sum_has_none_of_it() -> None:
    shard, spec = rare_class(), DesignSpec(4, (0, 1))
    design = make_design(shard, spec)
    ridge, either = (fit_nodes(shard, design, spec, logistic=on) for on in (False, True))
    assert "logistic" not in ridge.choice.form and either.choice.own == ALONE
    assert either.comparison is not None and ridge.comparison is not None
    assert either.comparison.alone >= ridge.comparison.alone


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.ones((4, 1)), np.ones((4, 3))])
def test_rows_without_anything_to_learn_give_finite_weights(rows: np.ndarray) -> None:
    for _, weights in fit_logistic(rows, np.zeros(len(rows), np.int64), 2):
        assert np.isfinite(weights).all()
    assert logistic_forms(["linear0", "linear1", "random"]) == ["linear1", "random"]


def homophilous(noise: float) -> tuple[NodeShard, np.ndarray]:
    """Two groups with edges within, and scores that are wrong for a share of nodes."""
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], 100)
    ends = rng.integers(0, 100, (2, 800))
    edges = build_adjacency(*(ends + 100 * (np.arange(800) % 2)), np.ones(800, np.float32), 200)
    splits = rng.choice([TRAIN, VALID], 200).astype(np.int8)
    shard = replace(rare_class(200), adjacency=edges, labels=labels, splits=splits)
    scores = np.eye(2)[labels] + noise * rng.standard_normal((200, 2))
    return shard, scores


def test_smoothing_helps_where_neighbours_are_alike_and_validation_chooses_it() -> None:
    shard, scores = homophilous(1.5)
    chosen = choose_smoothing(shard, scores)
    assert chosen in SMOOTHINGS
    assert np.mean(smooth_scores(shard, scores, chosen).argmax(1) == shard.labels) > np.mean(
        scores.argmax(1) == shard.labels
    )


def test_smoothing_that_gains_nothing_is_not_chosen_and_no_edge_changes_no_order() -> None:
    shard, scores = homophilous(0.0)
    assert choose_smoothing(shard, scores) is None
    lonely = replace(shard, adjacency=sparse.csr_array((200, 200), dtype=np.float32))
    others = lonely.nodes_of(VALID)
    found = smooth_scores(lonely, scores, Smoothing(0.8, 0.6))[others]
    assert np.array_equal(found.argmax(1), scores[others].argmax(1))
    assert choose_smoothing(lonely.with_splits(np.full(200, TRAIN, np.int8)), scores) is None
