"""The closed form of nodes: Gram sums equal pooled ridge, choices by validation, odd data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, UNLABELLED, VALID, NodeShard, build_adjacency
from client_service.models.nodes.closed_form import (
    ALONE,
    DesignSpec,
    NodeChoice,
    count_gram,
    find_own_projection,
    fit_nodes,
    make_design,
    refit_nodes,
    solve_ridge,
)
from client_service.models.nodes.measures import accuracy, primary_score
from shared.errors import SettingsError
from shared.method.graph import Float64


def drawn_shard(nodes: int = 120, classes: int = 3, features: int = 6, seed: int = 0, signal: float = 1.5) -> NodeShard:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, nodes)
    centres = np.random.default_rng(99).standard_normal((classes, features)) * signal
    values = (centres[labels] + rng.standard_normal((nodes, features))).astype(np.float32)
    sources, targets = rng.integers(0, nodes, 4 * nodes), rng.integers(0, nodes, 4 * nodes)
    kept = (labels[sources] == labels[targets]) | (rng.random(4 * nodes) < 0.2)
    edges = build_adjacency(sources[kept], targets[kept], np.ones(kept.sum(), np.float32), nodes)
    splits = rng.choice([TRAIN, VALID, TEST], nodes, p=[0.2, 0.4, 0.4]).astype(np.int8)
    names = tuple(f"class-{number}" for number in range(classes))
    ids = [f"{number:05d}" for number in range(nodes)]
    return NodeShard(
        f"silo-{seed}", ids, sparse.csr_array(values), [str(n) for n in range(features)], edges, labels, names, splits
    )


SPEC = DesignSpec(6, (0, 1, 2), random=20)


def by_hand(rows: Float64, wanted: Float64, penalty: float) -> Float64:
    """Ridge with a free constant by least squares on stacked rows."""
    width = rows.shape[1]
    below = np.sqrt(penalty) * np.eye(width)[1:]
    return np.linalg.lstsq(np.vstack([rows, below]), np.vstack([wanted, np.zeros((width - 1, wanted.shape[1]))]))[0]


def test_the_ridge_of_summed_matrices_is_the_ridge_of_all_rows() -> None:
    shards = [drawn_shard(seed=seed) for seed in range(3)]
    designs = [make_design(one, SPEC) for one in shards]
    train = [one.nodes_of(TRAIN) for one in shards]
    grams = [count_gram(d[rows], s.labels[rows], 3) for d, rows, s in zip(designs, train, shards, strict=True)]
    pooled = grams[0] + grams[1] + grams[2]
    rows = np.concatenate([d[r] for d, r in zip(designs, train, strict=True)]).astype(np.float64)
    wanted = np.eye(3)[np.concatenate([s.labels[r] for s, r in zip(shards, train, strict=True)])]
    centred = rows[:, 1:] - rows[:, 1:].mean(0)
    scale = np.trace(centred.T @ centred) / (SPEC.width - 1)
    assert np.allclose(solve_ridge(pooled, [0.01])[0], by_hand(rows, wanted, 0.01 * scale), atol=1e-6)


def test_a_multiple_of_the_own_matrices_weighs_own_rows() -> None:
    one, other = (drawn_shard(seed=seed) for seed in (4, 5))
    own, others = (count_gram(make_design(s, SPEC), s.labels, 3) for s in (one, other))
    repeated = own + others + own.weigh(3.0)
    assert repeated.nodes == 4 * 120 + 120
    assert np.allclose(repeated.square, 4 * own.square + others.square)


def test_the_design_follows_from_no_statistic_of_the_silo() -> None:
    """Nodes in a component of their own have the same rows, whatever else the silo has."""
    shard = drawn_shard(40)
    other = drawn_shard(40, seed=7)
    both = replace(
        shard,
        node_ids=[f"{number:05d}" for number in range(80)],
        features=sparse.csr_array(sparse.vstack([shard.features, other.features * 50])),
        adjacency=sparse.csr_array(sparse.block_diag([shard.adjacency, other.adjacency])),
        labels=np.concatenate([shard.labels, other.labels]),
        splits=np.concatenate([shard.splits, other.splits]),
    )
    assert np.allclose(make_design(both, SPEC)[:40], make_design(shard, SPEC), atol=1e-5)


def test_projected_features_are_the_mean_of_powers_and_weights_say_so_by_power() -> None:
    shard = drawn_shard(features=30)
    spec = DesignSpec(30, (0, 1, 2), directions=8)
    projection = find_own_projection(shard, spec)
    assert projection is not None and np.allclose(projection.T @ projection, np.eye(8), atol=1e-9)
    design = make_design(shard, spec, projection)
    assert design.shape == (120, 9) == (120, spec.width)
    model = fit_nodes(shard, design, spec)
    scaled = shard.features.toarray() / np.linalg.norm(shard.features.toarray(), axis=1, keepdims=True)
    from client_service.models.nodes.spectral_bases import propagation_matrix

    powers, propagation = [scaled @ projection], propagation_matrix(shard.adjacency)
    for _ in range(2):
        powers.append(propagation @ powers[-1])
    by_power = model.weights[0] + np.einsum("knd,kdc->nc", np.stack(powers), model.linear)
    assert np.allclose(by_power, model.scores(design), atol=1e-4)


def test_joining_helps_a_silo_of_few_labels_and_says_by_how_much() -> None:
    shards = [drawn_shard(100, features=6, seed=seed, signal=0.7) for seed in range(6)]
    designs = [make_design(one, SPEC) for one in shards]
    grams = [
        count_gram(d[s.nodes_of(TRAIN)], s.labels[s.nodes_of(TRAIN)], 3) for d, s in zip(designs, shards, strict=True)
    ]
    pooled = grams[0]
    for one in grams[1:]:
        pooled = pooled + one
    gains = []
    for shard, design in zip(shards, designs, strict=True):
        alone, joined = fit_nodes(shard, design, SPEC), fit_nodes(shard, design, SPEC, pooled)
        assert alone.choice.own == ALONE and alone.comparison is not None and alone.comparison.together is None
        assert joined.comparison is not None and joined.comparison.together is not None
        rows = shard.nodes_of(TEST)
        gains.append(
            accuracy(joined.scores(design[rows]), shard.labels[rows])
            - accuracy(alone.scores(design[rows]), shard.labels[rows])
        )
    assert np.mean(gains) > 0


def test_a_refitted_model_has_what_was_chosen_and_every_label() -> None:
    """Where no node is held out it is the same model; else each candidate is solved again, by all labelled nodes."""
    for classes, logistic in ((3, False), (2, True)):
        shard = drawn_shard(200, classes=classes)
        design, train = make_design(shard, SPEC), shard.nodes_of(TRAIN)
        own = count_gram(design[train], shard.labels[train], classes)
        other = drawn_shard(200, classes=classes, seed=9)
        pooled = own + count_gram(make_design(other, SPEC), other.labels, classes)
        for sums in (None, pooled):
            model = fit_nodes(shard, design, SPEC, sums, logistic=logistic)
            assert abs(sum(share for _, share in model.parts) - 1.0) < 1e-9
            only = replace(shard, labels=np.where(shard.splits == TRAIN, shard.labels, UNKNOWN))
            assert np.allclose(refit_nodes(model, only, design, sums).weights, model.weights, atol=1e-4)
            whole = refit_nodes(model, shard, design, sums)
            assert whole.calibration == model.calibration and whole.choice == model.choice
            assert np.abs(whole.weights - model.weights).max() > 1e-3
    parts = ((NodeChoice("linear1", 0.1, 3.0), 0.25), (NodeChoice("linear0", 1.0, 0.0), 0.75))
    found = refit_nodes(replace(model, parts=parts), shard, design, pooled)
    every = count_gram(design, shard.labels, 2)
    expected = np.zeros((SPEC.width, 2))
    for choice, share in parts:
        gram = (pooled + own.weigh(-1.0) + every.weigh(1.0 + choice.own)).select_columns(SPEC.forms[choice.form])
        expected[SPEC.forms[choice.form]] += share * solve_ridge(gram, [choice.strength])[0]
    assert np.allclose(found.weights, expected, atol=1e-5)


def test_a_silo_that_others_would_harm_stays_alone() -> None:
    """The others' labels are turned: what is class 0 here is class 1 there."""
    shard = drawn_shard(300, classes=2, signal=2.0)
    others = [drawn_shard(300, classes=2, seed=seed, signal=2.0) for seed in range(1, 6)]
    design = make_design(shard, SPEC)
    pooled = count_gram(design[shard.nodes_of(TRAIN)], shard.labels[shard.nodes_of(TRAIN)], 2)
    for one in others:
        pooled = pooled + count_gram(make_design(one, SPEC), 1 - one.labels, 2).weigh(100.0)
    model = fit_nodes(shard, design, SPEC, pooled)
    assert model.choice.own == ALONE
    rows = shard.nodes_of(TEST)
    assert primary_score(model.scores(design[rows]), shard.labels[rows], 2) > 0.9


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("odd", ["no validation", "no training", "one class", "no edges", "nothing known", "zeros"])
def test_odd_shards_are_fitted_and_answer_finite_probabilities(odd: str, classes: int) -> None:
    shard = drawn_shard(classes=classes)
    if odd == "no validation":
        shard = shard.with_splits(np.where(shard.splits == VALID, TEST, shard.splits).astype(np.int8))
    if odd == "no training":
        shard = shard.with_splits(np.where(shard.splits == TRAIN, TEST, shard.splits).astype(np.int8))
    if odd == "one class":
        shard = replace(shard, labels=np.zeros_like(shard.labels))
    if odd == "no edges":
        shard = replace(shard, adjacency=sparse.csr_array(shard.adjacency.shape, dtype=np.float32))
    if odd == "nothing known":
        shard = replace(shard, labels=np.full_like(shard.labels, UNKNOWN), splits=np.full(120, UNLABELLED, np.int8))
    if odd == "zeros":
        shard = replace(shard, features=sparse.csr_array(shard.features.shape, dtype=np.float32))
    other = drawn_shard(classes=classes, seed=3)
    design = make_design(shard, SPEC)
    pooled = count_gram(make_design(other, SPEC), other.labels, classes)
    for model in (fit_nodes(shard, design, SPEC), fit_nodes(shard, design, SPEC, pooled)):
        found = model.predict(design)
        assert np.isfinite(found).all() and np.allclose(found.sum(1), 1.0, atol=1e-5)


def test_without_validation_a_silo_has_the_model_of_all() -> None:
    shard = drawn_shard()
    shard = shard.with_splits(np.where(shard.splits == VALID, TEST, shard.splits).astype(np.int8))
    design, other = make_design(shard, SPEC), drawn_shard(seed=3)
    model = fit_nodes(shard, design, SPEC, count_gram(make_design(other, SPEC), other.labels, 3))
    assert model.choice.own == 0.0


@pytest.mark.parametrize("classes", [2, 3])
def test_without_validation_a_silo_keeps_its_own_model_where_a_sum_says_the_opposite_of_its_labels(
    classes: int,
) -> None:
    shard = drawn_shard(classes=classes)
    shard = shard.with_splits(np.where(shard.splits == VALID, TEST, shard.splits).astype(np.int8))
    design, train = make_design(shard, SPEC), shard.nodes_of(TRAIN)
    own = count_gram(design[train], shard.labels[train], classes)
    false = count_gram(design[train], (shard.labels[train] + 1) % classes, classes)
    poisoned = fit_nodes(shard, design, SPEC, own + false.weigh(100.0))
    assert poisoned.choice.own == float("inf")
    test = shard.nodes_of(TEST)
    scores = poisoned.scores(design[test])
    alone = fit_nodes(shard, design, SPEC).scores(design[test])
    assert primary_score(scores, shard.labels[test], classes) == primary_score(alone, shard.labels[test], classes)


def test_another_number_of_features_and_a_missing_projection_are_refused() -> None:
    with pytest.raises(SettingsError, match="expected 7 columns"):
        make_design(drawn_shard(), DesignSpec(7, (0, 1)))
    with pytest.raises(SettingsError, match="expected a projection"):
        make_design(drawn_shard(), DesignSpec(6, (0, 1), directions=3))


def test_random_features_are_the_same_in_every_silo_and_another_seed_draws_others() -> None:
    assert np.array_equal(
        DesignSpec(6, (0, 1), random=5).random_weights, DesignSpec(6, (0, 1), random=5).random_weights
    )
    assert not np.array_equal(DesignSpec(6, (0, 1), 0, 5, 1).random_weights, DesignSpec(6, (0, 1), 0, 5).random_weights)
