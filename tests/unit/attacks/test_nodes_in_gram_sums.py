"""Attack: read single nodes out of Gram sums, from the sum of all silos or from what two silos know of the third.

Sums of few nodes tell of each. Columns and classes that few nodes of a silo have are left out of its part, so that no
number is of one node alone. Who knows a node's features and neighbours can test whether it was counted as long as there
are few nodes beside the columns: docs/privacy.md has these figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import rankdata

from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.models.nodes.closed_form import build_design_spec, make_design
from client_service.sums.node_directions import count_products
from client_service.sums.node_gram import NODE_GRAM_SUM, SummedGram, add_gram, count_nodes, finish_gram, own_gram
from client_service.sums.silo_sum import SumRound, Sums
from shared.method.settings import MethodSettings, method_settings
from shared.sums.node_directions import draw_directions
from tests.support.nodes import small_graph

FEATURES, CLASSES, SILOS = 12, 3, 3


def settings(least: int, features: int = FEATURES, kind: str = "node_gram", **nodes: int) -> MethodSettings:
    sizes = {"features": features, "classes": CLASSES, "hops": 1, "random_features": 0, **nodes}
    asked: dict[str, Any] = {"basis.kind": kind, "basis.least_pairs": least}
    return method_settings(**asked | {f"nodes.{name}": value for name, value in sizes.items()})


def silos(nodes: int = 60) -> list[NodeShard]:
    return [small_graph(nodes=nodes, features=FEATURES, classes=CLASSES, seed=seed) for seed in range(SILOS)]


def subtract_two(shards: list[NodeShard], method: MethodSettings) -> SummedGram:
    """What the first two silos know of the third: the sum, without their own parts."""
    rounds = [SumRound(count_nodes(one, method), method, 1, SILOS, 1, {}) for one in shards]
    parts = [add_gram(one) for one in rounds]
    total: Sums = {name: np.sum([one[name] for one in parts], axis=0, dtype=np.uint32) for name in parts[0]}
    left: Sums = {name: total[name] - parts[0][name] - parts[1][name] for name in total}
    return finish_gram(rounds[0]._replace(sums={1: left}))


def lone_of_a_class(shard: NodeShard) -> tuple[NodeShard, int]:
    """The shard with one training node of the last class, and its row."""
    labels, rows = shard.labels.copy(), shard.nodes_of(TRAIN)
    labels[rows] = np.where(labels[rows] == CLASSES - 1, 0, labels[rows])
    labels[rows[4]] = CLASSES - 1
    return replace(shard, labels=labels), int(rows[4])


def test_two_silos_know_the_part_of_the_third_and_no_more() -> None:
    method, shards = settings(3), silos()
    known = subtract_two(shards, method)
    own = own_gram(count_nodes(shards[2], method), method.nodes, None)
    np.testing.assert_allclose(known.square, own.square, atol=1e-6)
    np.testing.assert_allclose(known.right, own.right, atol=1e-6)


@pytest.mark.parametrize("least", [1, 3])
def test_the_features_of_the_only_node_of_a_class_are_read_unless_few_nodes_are_left_out(least: int) -> None:
    method, shards = settings(least), silos()
    shards[2], row = lone_of_a_class(shards[2])
    told = subtract_two(shards, method).right[:, CLASSES - 1]
    design = make_design(shards[2], build_design_spec(method.nodes))[row]
    assert np.allclose(told, design, atol=1e-5) == (least == 1)
    assert told.any() == (least == 1)


@pytest.mark.parametrize("least", [1, 3])
def test_the_only_node_with_a_feature_is_read_from_all_silos_sum_unless_it_is_left_out(least: int) -> None:
    """No silo needs to lie, and no two to collude: the aggregator knows the sum."""
    method, shards = settings(least), silos()
    for place, one in enumerate(shards):
        values = one.features.toarray()
        values[:, 5] = 0.0
        row = int(one.nodes_of(TRAIN)[6])
        if place == 2:
            values[row, 5] = 1.0
        shards[place] = replace(one, features=sparse.csr_array(values))
    rounds = [SumRound(count_nodes(one, method), method, 1, SILOS, 1, {}) for one in shards]
    parts = [add_gram(one) for one in rounds]
    total: Sums = {name: np.sum([one[name] for one in parts], axis=0, dtype=np.uint32) for name in parts[0]}
    found = finish_gram(rounds[0]._replace(sums={1: total}))
    design = make_design(shards[2], build_design_spec(method.nodes))[row]
    assert np.allclose(found.square[1 + 5], design, atol=1e-5) == (least == 1)
    assert found.square[1 + 5].any() == (least == 1)
    assert found.right[1 + 5].any() == (least == 1), "its class"


def membership(nodes: int, columns: int, seed: int) -> float:
    """How well who knows rows tells counted ones from others by their leverage, as an area under the ROC curve."""
    generator = np.random.default_rng(seed)
    rows = (generator.random((nodes + 200, columns)) < 0.2).astype(np.float64)
    rows[:, 0] = 1.0
    values, axes = np.linalg.eigh(rows[:nodes].T @ rows[:nodes])
    weights = np.where(values > 1e-8 * values[-1], 1.0 / np.maximum(values, 1e-12), 1e6)
    leverage: NDArray[np.float64] = ((rows @ axes) ** 2 * weights).sum(1)
    ranks = rankdata(-leverage)
    return float((ranks[:nodes].sum() - nodes * (nodes + 1) / 2) / (nodes * 200))


@pytest.mark.parametrize(
    ("columns", "times", "least", "most"),
    [
        (36, 1, 1.0, 1.0),
        (36, 2, 0.9, 1.0),
        (36, 10, 0.55, 0.68),
        (144, 1, 1.0, 1.0),
        (144, 12, 0.6, 0.75),
    ],
)
def test_whether_a_known_node_was_counted_is_told_where_nodes_are_few(
    columns: int, times: int, least: float, most: float
) -> None:
    """Up to as many nodes as columns always, and hardly beyond columns^1.5 of them, of which the silos are warned."""
    found = float(np.mean([membership(columns * times, columns, seed) for seed in range(5)]))
    assert least <= found <= most, found
    [told] = NODE_GRAM_SUM.warnings(settings(3, features=(columns - 1) // 2))
    assert f"fewer than {(2 * ((columns - 1) // 2) + 1) ** 1.5:,.0f} training nodes" in told


@pytest.mark.parametrize("least", [1, 3])
def test_other_features_of_the_only_node_with_a_feature_follow_from_directions_unless_it_is_left_out(
    least: int,
) -> None:
    """Its row of the products is its features times directions that all know: they are found by correlation."""
    size, method = 400, settings(least, features=400, kind="node_directions", directions=200)
    generator = np.random.default_rng(1)
    values = (generator.random((60, size)) < 0.02).astype(np.float32)
    values[:, 7] = 0.0
    values[20, 7] = 1.0
    shard = replace(
        small_graph(nodes=60, classes=CLASSES),
        features=sparse.csr_array(values),
        feature_names=tuple(f"w{one}" for one in range(size)),
        adjacency=sparse.csr_array(np.zeros((60, 60), np.float32)),
    )
    products = count_products(shard, method)
    told = products[7] @ draw_directions(method.nodes).T
    has = np.flatnonzero(values[20])
    likeliest = np.argsort(-told)[: len(has)]
    assert (set(likeliest.tolist()) == set(has.tolist())) == (least == 1)
    assert told.any() == (least == 1)
