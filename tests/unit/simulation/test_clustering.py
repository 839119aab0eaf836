"""Pivoted-QR labels: components and turned indicators are found, and the order of nodes does not matter."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.method.graph import interaction_matrix
from simulation.partitioning.methods import joint_labels, pivoted_qr_labels


def test_separate_components_are_separate_clients() -> None:
    rows = np.repeat(np.arange(600), 3)
    items = (rows // 200) * 200 + np.random.default_rng(0).integers(0, 200, len(rows))
    graph = interaction_matrix(rows, items, (600, 600))
    graph = graph[:, np.flatnonzero(graph.sum(axis=0))]
    users, _ = joint_labels(graph, 3, seed=0)
    groups = [set(users[start : start + 200].tolist()) for start in (0, 200, 400)]
    assert sum(len(group) for group in groups) == 3 and len(set.union(*groups)) == 3


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_labels_do_not_depend_on_the_order_of_nodes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = np.repeat(np.arange(3), [40, 20, 15])[:, None] == np.repeat(np.arange(3), [30, 25, 10])
    edges = np.nonzero(np.random.default_rng(0).random(blocks.shape) < np.where(blocks, 0.4, 0.01))
    graph = interaction_matrix(edges[0], edges[1], (75, 65))
    rows, columns = rng.permutation(75), rng.permutation(65)
    users, items = joint_labels(graph, 3, seed=0)
    users_moved, items_moved = joint_labels(graph[rows][:, columns], 3, seed=0)
    assert any(
        np.array_equal(np.take(names, users)[rows], users_moved)
        and np.array_equal(np.take(names, items)[columns], items_moved)
        for names in permutations(range(3))
    )


def test_turned_indicator_vectors_give_back_their_groups() -> None:
    groups = np.array([0, 0, 1, 2, 2, 2, 1])
    indicators = np.eye(3)[groups] / np.sqrt(np.bincount(groups))
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))
    for seed in (0, 5):
        labels = pivoted_qr_labels(indicators @ turn, seed)
        assert len(set(zip(groups.tolist(), labels.tolist(), strict=True))) == 3
