"""FED-PUB: what the masks cost, how alike two clients are, and the mean that each gets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shared.method.node_settings import NodeSettings
from shared.method.parameters import Float32, State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import initial_parameters, mlp_specification, unifilter_specification
from shared.strategies.fedpub import (
    PROXY_SEED,
    fedpub,
    functional_embedding,
    proxy_graph,
    proxy_layers,
    proxy_powers,
    similarity_weights,
)

METHOD = MethodSettings(width=2, layers=1)
FEDPUB = fedpub(METHOD)
BIAS = "pooling.output.bias"
START = initial_parameters(mlp_specification(METHOD), 0, exact=True)  # output weights zero: the bias is the embedding


def update(client: str, *bias: float) -> Update:
    arrays = {name: value.copy() for name, value in START.items()}
    return Update(client, {**arrays, BIAS: np.array(bias, dtype=np.float32)}, {})


def test_the_proxy_has_five_blocks_of_a_hundred_nodes_and_no_edge_between_them() -> None:
    adjacency = proxy_graph(np.random.default_rng(4))
    blocks = adjacency.reshape(5, 100, 5, 100).sum(axis=(1, 3))
    assert (blocks == np.diag(np.diag(blocks))).all()
    np.testing.assert_allclose(np.diag(blocks), 9900 * 0.1, rtol=0.15)  # 9900 ordered pairs of two nodes in each
    assert (adjacency == adjacency.T).all() and not adjacency.diagonal().any() and set(np.unique(adjacency)) == {0, 1}


def test_the_proxy_s_layers_are_normal_features_and_what_its_normalised_adjacency_makes_of_them() -> None:
    generator = np.random.default_rng(PROXY_SEED)
    adjacency = proxy_graph(generator)
    root = np.diag(adjacency.sum(axis=1) ** -0.5)
    step, features = root @ adjacency @ root, generator.standard_normal((500, 2))
    expected = np.concatenate([features, step @ features, step @ step @ features], axis=1)
    np.testing.assert_allclose(proxy_layers(2, 2), expected, atol=1e-12)


def test_the_proxy_is_the_same_for_everybody_and_cannot_be_changed() -> None:
    first = proxy_layers(2, 1)
    held = first.copy()
    proxy_layers.cache_clear()
    assert np.array_equal(proxy_layers(2, 1), held)
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1.0


def test_the_functional_embedding_is_the_mean_output_over_the_proxy_s_nodes() -> None:
    arrays = initial_parameters(mlp_specification(METHOD), 3, exact=False)
    by_node = [
        arrays["pooling.output.weight"].astype(float)
        @ np.tanh(arrays["pooling.hidden.weight"].astype(float) @ row + arrays["pooling.hidden.bias"])
        + arrays[BIAS]
        for row in proxy_layers(2, 1)
    ]
    np.testing.assert_allclose(functional_embedding(arrays), np.mean(by_node, axis=0), atol=1e-12)
    np.testing.assert_allclose(functional_embedding(update("a", 3.0, -4.0).arrays), [3.0, -4.0], atol=1e-12)


def test_weights_of_two_clients_by_hand() -> None:
    # cos((3, 4), (4, 3)) = 24 / 25; the other's weight is e^9.6 / (e^10 + e^9.6) = 1 / (1 + e^.4).
    other = 1.0 / (1.0 + math.exp(0.4))
    expected = [[1.0 - other, other], [other, 1.0 - other]]
    np.testing.assert_allclose(similarity_weights(np.array([[3.0, 4.0], [8.0, 6.0]])), expected, atol=1e-12)


def test_a_client_without_direction_is_equally_near_to_all() -> None:
    np.testing.assert_allclose(similarity_weights(np.array([[0.0, 0.0], [1.0, 0.0]]))[0], [0.5, 0.5])


def test_each_client_gets_the_mean_with_its_own_weights_and_a_newcomer_the_plain_one() -> None:
    updates = [update("a", 3.0, 4.0), update("b", 8.0, 6.0)]
    state = FEDPUB.aggregate(State(START), updates)
    other = 1.0 / (1.0 + math.exp(0.4))
    expected = {
        "a": [3.0 + 5.0 * other, 4.0 + 2.0 * other],
        "b": [8.0 - 5.0 * other, 6.0 - 2.0 * other],
        None: [5.5, 5.0],
    }
    for asker in (*updates, None):
        found = FEDPUB.personalise(state, asker)
        np.testing.assert_allclose(found.arrays[BIAS], expected[asker.client if asker else None], rtol=1e-6)
        assert set(found.arrays) == set(START) and dict(found.scalars) == {}


def test_clients_that_point_apart_hardly_hear_each_other() -> None:
    updates = [update("a", 1.0, 0.0), update("b", -1.0, 0.0)]
    state = FEDPUB.aggregate(State(START), updates)
    assert FEDPUB.personalise(state, updates[0]).arrays[BIAS][0] == pytest.approx(1.0, abs=1e-7)  # e^-20 of the other
    assert state.arrays[BIAS].tolist() == [0.0, 0.0]


def test_one_that_misses_a_round_keeps_the_mean_made_for_it_last() -> None:
    updates = [update("a", 3.0, 4.0), update("b", 8.0, 6.0)]
    first = FEDPUB.aggregate(State(START), updates)
    second = FEDPUB.aggregate(first, [update("a", 7.0, 0.0)])
    kept: Float32 = FEDPUB.personalise(second, updates[1]).arrays[BIAS]
    assert kept.tolist() == FEDPUB.personalise(first, updates[1]).arrays[BIAS].tolist()
    assert second.own["a"][BIAS].tolist() == [7.0, 0.0] and set(second.latest) == {"a", "b"}


NODES = MethodSettings(width=8, model="unifilter", nodes=NodeSettings(features=5, classes=2, order=3))


def node_update(client: str, seed: int) -> Update:
    return Update(client, initial_parameters(unifilter_specification(NODES), seed, exact=False), {})


def test_of_nodes_all_of_unifilter_is_compared_by_its_hidden_layer_on_powers_of_the_proxy() -> None:
    strategy = fedpub(NODES)
    assert strategy.model == "masked_unifilter"
    arrays = node_update("ada", 1).arrays
    found = functional_embedding(arrays)
    powers = proxy_powers(5, 3).astype(np.float64)
    filtered = sum(arrays["filter.weight"][k] * powers[k] for k in range(4))
    expected = np.maximum(filtered @ arrays["hidden.weight"].T + arrays["hidden.bias"], 0).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found.shape == (8,)


def test_of_nodes_the_nearer_client_weighs_more() -> None:
    ada, cyd = node_update("ada", 1), node_update("cyd", 3)
    near = {name: value * np.float32(1.01) for name, value in ada.arrays.items()}
    state = State(node_update("", 9).arrays)
    found = fedpub(NODES).aggregate(state, [ada, Update("bob", near, {}), cyd])
    name = "predictive.weight"
    own = found.own["ada"][name]
    assert np.abs(own - ada.arrays[name]).sum() < np.abs(own - cyd.arrays[name]).sum()
