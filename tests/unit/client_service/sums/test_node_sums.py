"""Gram sums of node graphs, and the directions of their features before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, UNLABELLED, VALID, NodeShard, build_adjacency
from client_service.models.nodes.closed_form import build_design_spec, count_gram, make_design, solve_ridge
from client_service.sums.node_directions import NodeDirections, count_products, digest_features
from client_service.sums.node_gram import (
    NODE_GRAM_SUM,
    SummedGram,
    add_gram,
    choose_nodes,
    count_nodes,
    digest_nodes,
    finish_gram,
    own_gram,
)
from client_service.sums.registry import SILO_SUMS
from client_service.sums.silo_sum import SumRound, Sums
from shared.errors import ProtocolError, SettingsError
from shared.method.settings import MethodSettings, method_settings
from shared.protocol.signing.invitation import FederationOut
from shared.sums.node_directions import PRODUCTS, draw_directions
from shared.sums.node_gram import encode_gram, gram_number_format
from shared.sums.sum import EMPTY_PART_DIGEST
from simulation.joining.consent import describe_terms
from simulation.joining.silo_toml import apply_policy

CLASSES = ("good", "bad", "odd")
STRENGTHS = (1e-3, 1e-2, 1e-1)


def make_shard(seed: int, nodes: int = 80, features: int = 12) -> NodeShard:
    """A silo whose nodes' classes follow from their features and those of their neighbours."""
    generator = np.random.default_rng(seed)
    values = (generator.random((nodes, features)) < 0.3).astype(np.float32)
    ends = generator.integers(0, nodes, (2, 3 * nodes))
    adjacency = build_adjacency(ends[0], ends[1], np.ones(3 * nodes, np.float32), nodes)
    labels = (values + adjacency @ values)[:, : len(CLASSES)].argmax(1).astype(np.int64)
    splits = np.array([TRAIN, TRAIN, VALID, TEST, UNLABELLED], np.int8)[np.arange(nodes) % 5]
    labels[splits == UNLABELLED] = UNKNOWN
    ids, names = [f"n{one:04}" for one in range(nodes)], [f"f{one:03}" for one in range(features)]
    return NodeShard(f"silo-{seed}", ids, sparse.csr_array(values), names, adjacency, labels, CLASSES, splits)


def settings(kind: str = "node_gram", **changed: Any) -> MethodSettings:
    sizes = {"features": 12, "classes": 3, "hops": 2, "directions": 64, "random_features": 6}
    nodes = {f"nodes.{name}": value for name, value in (sizes | changed).items() if name != "least"}
    return method_settings(**{"basis.kind": kind, "basis.least_pairs": changed.get("least", 1)}, **nodes)


def added(parts: Sequence[Sums]) -> Sums:
    return {name: np.sum([part[name] for part in parts], axis=0, dtype=np.uint32) for name in parts[0]}


def sum_directions(shards: Sequence[NodeShard], method: MethodSettings) -> NodeDirections | None:
    if not method.nodes.projected:
        return None
    half, rounds = SILO_SUMS["node_directions"], []
    for shard in shards:
        rounds.append(SumRound(count_products(shard, method), method, 1, len(shards), 1, {}))
    found = half.finish(rounds[0]._replace(sums={1: added([half.add(one) for one in rounds])}))
    assert isinstance(found, NodeDirections)
    return found


def at_round(shard: NodeShard, method: MethodSettings, over: NodeDirections | None, clients: int = 4) -> SumRound:
    return SumRound(count_nodes(shard, method), method, 1, clients, 1, {}, over=over)


def sum_grams(shards: Sequence[NodeShard], method: MethodSettings) -> tuple[SummedGram, SumRound]:
    over = sum_directions(shards, method)
    rounds = [at_round(shard, method, over, len(shards)) for shard in shards]
    last = rounds[0]._replace(sums={1: added([add_gram(one) for one in rounds])})
    return finish_gram(last), last


@pytest.mark.parametrize(
    "changed",
    [{}, {"random_features": 40}, {"features": 90, "directions": 16}, {"fraction_bits": 36}],
    ids=["narrow", "random features", "projected", "finer"],
)
def test_weights_of_the_sums_are_those_of_one_ridge_on_all_silos_nodes(changed: dict[str, Any]) -> None:
    method = settings(**changed)
    shards = [make_shard(seed, features=method.nodes.features) for seed in range(4)]
    summed, _ = sum_grams(shards, method)
    spec, projection = build_design_spec(method.nodes), summed.find_projection(method.nodes)
    rows = [make_design(one, spec, projection)[one.nodes_of(TRAIN)] for one in shards]
    labels = np.concatenate([one.labels[one.nodes_of(TRAIN)] for one in shards])
    whole = count_gram(np.concatenate(rows), labels, len(CLASSES))
    pooled = summed.pool(shards[0], make_design(shards[0], spec, projection))
    np.testing.assert_allclose(solve_ridge(pooled, STRENGTHS), solve_ridge(whole, STRENGTHS), atol=1e-6)
    assert pooled.nodes == len(labels) and spec.width == method.nodes.columns


def test_a_projection_is_the_directions_of_most_features_and_has_no_scale() -> None:
    method = settings("node_directions", features=90, directions=16)
    generator = np.random.default_rng(2)
    bases = (generator.random((6, 90)) < 0.2).astype(np.float32)
    drawn = [sparse.csr_array(bases[generator.integers(0, 6, 80)]) for _ in range(3)]
    shards = [replace(make_shard(seed, features=90), features=one) for seed, one in enumerate(drawn)]
    found = sum_directions(shards, method)
    assert found is not None
    projection = found.find_projection(method.nodes)
    np.testing.assert_allclose(projection.T @ projection, np.eye(16), atol=1e-9)
    np.testing.assert_allclose(bases @ projection @ projection.T, bases, atol=1e-3)
    np.testing.assert_array_equal(projection, found.find_projection(method.nodes))


def test_a_silo_that_joins_late_adds_its_own_nodes_to_the_sums() -> None:
    method, shards = settings(), [make_shard(seed) for seed in range(4)]
    of_three, _ = sum_grams(shards[:3], method)
    of_all, _ = sum_grams(shards, method)
    design = make_design(shards[3], build_design_spec(method.nodes))
    late = replace(of_three, included=False).pool(shards[3], design)
    np.testing.assert_allclose(late.square, of_all.square, atol=1e-7)
    np.testing.assert_allclose(late.right, of_all.right, atol=1e-7)
    assert replace(of_three, included=False).digest == of_three.digest, "alike in every silo"


def test_of_a_class_or_a_column_that_few_nodes_have_a_silo_adds_nothing() -> None:
    method, shard = settings(least=3, random_features=0), make_shard(5)
    labels, values = shard.labels.copy(), shard.features.toarray()
    train = shard.nodes_of(TRAIN)
    labels[train] = np.where(labels[train] == 2, 0, labels[train])
    labels[train[:2]] = 2
    values[:, 7] = 0
    values[train[5], 7] = 1
    odd = replace(shard, labels=labels, features=sparse.csr_array(values))
    assert not np.isin(train[:2], choose_nodes(odd, 3)).any() and len(choose_nodes(odd, 3)) == len(train) - 2
    own = own_gram(count_nodes(odd, method), method.nodes, None)
    assert own.nodes == len(train) - 2 and own.right[0, 2] == 0.0
    assert not own.square[8].any(), "column 1 + 7 of the design is one node's alone"
    all_of_it = own_gram(count_nodes(odd, settings(random_features=0)), method.nodes, None)
    assert all_of_it.square[8].any() and all_of_it.right[0, 2] == 2.0


def test_of_a_feature_that_few_nodes_have_no_direction_tells() -> None:
    method, shard = settings("node_directions", features=90, directions=16, least=3), make_shard(5, features=90)
    values = shard.features.toarray()
    values[:, 7] = 0
    values[[3, 4], 7] = 1
    odd = replace(shard, features=sparse.csr_array(values))
    assert not count_products(odd, method)[7].any()
    alone = settings("node_directions", features=90, directions=16)
    assert count_products(odd, alone)[7].any()


LIES = {
    "a square below 0": lambda square, right: (_set(square, (3, 3), -5.0), right),
    "part of a node": lambda square, right: (square, _set(right, (0, 1), right[0, 1] + 0.25)),
    "classes of more nodes than there are": lambda square, right: (square, _set(right, (0, 1), square[0, 0] + 9)),
    "columns that go together too much": lambda square, right: (_set(square, (2, 4), 1e4), right),
    "a label that goes with a column too much": lambda square, right: (square, _set(right, (3, 1), 1e4)),
    "no node": lambda square, right: (np.zeros_like(square), np.zeros_like(right)),
}


def _set(matrix: Any, at: tuple[int, int], value: float) -> Any:
    found = matrix.copy()
    found[at] = value
    if found.shape[0] == found.shape[1]:
        found[at[::-1]] = value
    return found


@pytest.mark.parametrize("lie", LIES)
def test_sums_that_no_data_can_have_are_refused(lie: str) -> None:
    method = settings()
    summed, last = sum_grams([make_shard(seed) for seed in range(4)], method)
    square, right = LIES[lie](summed.square, summed.right)
    false = encode_gram(square, right, method.nodes, 1)
    with pytest.raises(ProtocolError, match=r"^expected Gram sums of nodes that data can have, got .*renew-basis"):
        finish_gram(last._replace(sums={1: false}))


def test_words_that_have_wrapped_around_are_refused_and_zeros_of_directions_too() -> None:
    method = settings()
    _, last = sum_grams([make_shard(seed) for seed in range(4)], method)
    full = {name: np.full_like(value, 2**32 - 1) for name, value in last.sums[1].items()}
    with pytest.raises(ProtocolError, match="wrapped around"):
        finish_gram(last._replace(sums={1: full}))
    wide = settings("node_directions", features=90, directions=16)
    nothing = {PRODUCTS: np.zeros((1, 90 * 16), np.uint32)}
    with pytest.raises(ProtocolError, match="got an impossible one"):
        SILO_SUMS["node_directions"].finish(SumRound(None, wide, 1, 3, 1, {1: nothing}))


def test_features_that_a_sum_has_no_room_for_are_refused_without_their_values() -> None:
    method, shard = settings(), make_shard(1)
    for value in (1e6, 1e30):
        values = shard.features.toarray()
        values[0, 0] = value
        large = replace(shard, features=sparse.csr_array(values))
        with pytest.raises(
            ProtocolError, match=r"^features of nodes: expected columns .*, got more in 'f000'"
        ) as refused:
            add_gram(at_round(large, method, None))
        assert "logarithms" in str(refused.value) and f"{value:g}" not in str(refused.value)
    most = gram_number_format(method.nodes)
    assert most.limit == 2.0**21 and most.most_silos == 1024
    values[0, 0] = 1e6
    coarse = settings(fraction_bits=8)
    add_gram(at_round(replace(shard, features=sparse.csr_array(values)), coarse, None))


def test_digests_change_with_what_is_counted_alone() -> None:
    method, shard = settings(), make_shard(1)
    known = digest_nodes(shard, method)
    assert digest_features(shard, method).training == known.training, "sums of both parts are told apart together"
    fewer = shard.splits.copy()
    fewer[shard.nodes_of(TRAIN)[0]] = UNLABELLED
    relabelled = shard.labels.copy()
    relabelled[shard.nodes_of(TRAIN)[0]] = (relabelled[shard.nodes_of(TRAIN)[0]] + 1) % 3
    edges = shard.adjacency.copy()
    edges.data = edges.data * np.float32(2.0)
    for changed in (
        replace(shard, splits=fewer),
        replace(shard, labels=relabelled),
        replace(shard, adjacency=edges),
        replace(shard, features=sparse.csr_array(shard.features * np.float32(2.0))),
    ):
        assert digest_nodes(changed, method).training != known.training
        assert digest_nodes(changed, method).catalogue == known.catalogue
    judged = shard.labels.copy()
    judged[shard.nodes_of(TEST)] = 0
    ids = [f"other-{one:04}" for one in range(len(shard.node_ids))]
    for same in (replace(shard, labels=judged), replace(shard, node_ids=ids), replace(shard, name="another")):
        assert digest_nodes(same, method) == known


def test_other_names_or_orders_of_columns_are_other_lists_and_other_sizes_are_refused() -> None:
    method, shard = settings(), make_shard(1)
    known = digest_nodes(shard, method).catalogue
    for changed in (
        replace(shard, feature_names=shard.feature_names[::-1]),
        replace(shard, classes=("good", "bad", "other")),
        replace(shard, classes=CLASSES[::-1]),
    ):
        assert digest_nodes(changed, method).catalogue not in (known, EMPTY_PART_DIGEST)
    for wrong in (settings(features=13), settings(classes=2)):
        with pytest.raises(SettingsError, match=r"^shard of nodes: expected .* as all silos have"):
            count_nodes(shard, wrong)
    for unsaid in (settings(features=0), settings(classes=0), settings(classes=1)):
        with pytest.raises(SettingsError, match=r"^nodes\.features, nodes\.classes: expected how many"):
            count_nodes(shard, unsaid)
        with pytest.raises(SettingsError, match=r"^nodes\.features, nodes\.classes: expected how many"):
            NODE_GRAM_SUM.declared.list_tensors(unsaid)


def test_a_silo_without_labels_or_edges_adds_what_it_has() -> None:
    method, shard = settings(least=3), make_shard(1)
    nobody = replace(shard, labels=np.full(80, UNKNOWN), splits=np.full(80, UNLABELLED, np.int8))
    assert digest_nodes(nobody, method).catalogue == EMPTY_PART_DIGEST
    assert not any(value.any() for value in add_gram(at_round(nobody, method, None)).values())
    lonely = replace(shard, adjacency=sparse.csr_array(np.zeros((80, 80), np.float32)))
    one_class = replace(shard, labels=np.where(shard.labels == UNKNOWN, UNKNOWN, 1))
    for odd in (lonely, one_class):
        summed, _ = sum_grams([shard, odd, make_shard(2)], method)
        assert summed.square[0, 0] >= 60 and np.isfinite(summed.square).all()


def test_directions_follow_from_sizes_alone() -> None:
    nodes = settings(features=90, directions=16).nodes
    np.testing.assert_array_equal(draw_directions(nodes), draw_directions(nodes))
    assert NODE_GRAM_SUM.declared.base_part(settings(features=90, directions=16)) == "directions"
    assert NODE_GRAM_SUM.declared.base_part(settings()) is None


def test_gram_sums_over_anything_but_directions_are_refused() -> None:
    method, shard = settings(features=90, directions=16), make_shard(1, features=90)
    other, _ = sum_grams([make_shard(seed) for seed in range(3)], settings())
    with pytest.raises(ProtocolError, match="over directions of nodes' features, got some over 'node_gram'"):
        add_gram(at_round(shard, method, other))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="expected a projection"):
        add_gram(at_round(shard, method, None))


def test_who_joins_is_told_what_leaves_what_is_learnt_and_what_stays() -> None:
    method = settings(features=1433, directions=256, least=3).model_copy(update={"model": "node_ridge"})
    alone = method.model_copy(update={"strategy": {"train": False, "send": False}})
    federation = FederationOut(strategy="local", task="nodes", secure=True, method=alone)
    told = "\n".join(describe_terms("banks", federation))
    for words in (
        "sums statistics of nodes, their neighbours and their labels",
        "products with directions that all silos know: 1.47",
        "these features go together with each class, summed over nodes: 2",
        "classes of which a silo has fewer than 3 training nodes are left out",
        "stays here: ids, names, single nodes, edges and labels",
    ):
        assert words in told, told
    assert apply_policy(federation, {}).missing == {"node_directions": "secure", "node_gram": "secure"}
