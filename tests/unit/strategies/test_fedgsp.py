"""FedGSP: whose coefficients each client gets, leavers and newcomers, and what no silo is made to tell unasked."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from client_service.boundary.policy import USUAL_STRATEGIES, Policy, allowed_declaration
from client_service.privacy.settings import require_accountable
from shared.errors import PrivacyError, SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.parameters import State, Update, digest_arrays
from shared.method.settings import MethodSettings
from shared.method.tensors import initial_parameters
from shared.protocol.wire import encode_body, open_parameters
from shared.strategies import build_strategy
from shared.strategies.agreement import secure_declaration
from shared.strategies.collaboration_graph import ROW, begin_weights, recall_collaboration
from shared.strategies.fedgsp import FILTER, HIGH, LOW
from shared.strategies.strategy import Strategy

NODES = NodeSettings(features=4, classes=2, order=3)


def settings(**own: Any) -> MethodSettings:
    return MethodSettings(width=2, nodes=NODES, strategy=own)


def built(**own: Any) -> Strategy:
    return build_strategy("fedgsp", settings(**own))


def update(client: str, seed: int) -> Update:
    generator = np.random.default_rng(seed)
    arrays = initial_parameters(built().tensors(settings()), seed, exact=False)
    arrays[FILTER] = generator.normal(size=4).astype(np.float32)
    sides = {name: 0.2 * generator.normal(size=(3, 4)).astype(np.float32) for name in (LOW, HIGH)}
    return Update(client, {**arrays, **sides}, {})


THREE = [update(name, seed) for seed, name in enumerate(("ada", "bob", "cyd"))]
START = State(initial_parameters(built().tensors(settings()), 9, exact=False))


def test_each_coefficient_is_mixed_by_the_weights_of_its_order_and_the_rest_by_their_mean() -> None:
    state = built().aggregate(START, THREE)
    found = recall_collaboration(state.memory)
    assert found is not None and found.clients == ("ada", "bob", "cyd")
    assert np.abs(found.weights[0] - found.weights[1]).max() > 0.01
    sent = np.stack([one.arrays[FILTER] for one in THREE])
    for place, client in enumerate(found.clients):
        given = built().personalise(state, THREE[place]).arrays
        expected = [found.overall[place] @ sent[:, 0]]
        expected += [found.weights[k, place] @ sent[:, k + 1] for k in range(3)]
        np.testing.assert_allclose(given[FILTER], expected, rtol=0, atol=1e-6)
        hidden = sum(found.overall[place, j] * THREE[j].arrays["hidden.weight"] for j in range(3))
        np.testing.assert_allclose(given["hidden.weight"], hidden, rtol=0, atol=1e-6)
        assert given.keys() == START.arrays.keys(), client


def test_a_newcomer_gets_the_plain_mean_and_nobody_is_sent_signatures_or_weights() -> None:
    state = built().aggregate(START, THREE)
    given = built().personalise(state, None)
    mean = np.mean([one.arrays["predictive.bias"] for one in THREE], axis=0)
    np.testing.assert_allclose(given.arrays["predictive.bias"], mean, atol=1e-7)
    for one in (*THREE, None):
        assert not {LOW, HIGH} & built().personalise(state, one).arrays.keys()
        assert not any(name.startswith(ROW) for name in built().personalise(state, one).arrays)


def test_the_weights_of_the_round_before_matter_and_settle() -> None:
    strategy = built()
    states = [START]
    for _ in range(40):
        states.append(strategy.aggregate(states[-1], THREE))
    weights = [recall_collaboration(one.memory) for one in states[1:]]
    first, second, last, end = (one.weights for one in (weights[0], weights[1], *weights[-2:]) if one is not None)
    assert np.abs(first - second).max() > 1e-4
    assert np.abs(last - end).max() < 1e-6


def test_a_leaver_keeps_its_last_answer_and_a_newcomer_finds_its_place() -> None:
    strategy = built()
    first = strategy.aggregate(START, THREE)
    without = strategy.aggregate(first, THREE[:2])
    assert digest_arrays(strategy.personalise(without, THREE[2]).arrays) == digest_arrays(first.own["cyd"])
    found = recall_collaboration(without.memory)
    assert found is not None and found.clients == ("ada", "bob") and found.weights.shape == (3, 2, 2)
    later = strategy.aggregate(without, [*THREE, update("dan", 7)])
    found = recall_collaboration(later.memory)
    assert found is not None and found.clients == ("ada", "bob", "cyd", "dan")
    np.testing.assert_allclose(found.weights.sum(axis=2), 1.0, rtol=0, atol=1e-6)
    assert sorted(later.own) == ["ada", "bob", "cyd", "dan"]


def test_a_state_that_was_saved_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    strategy = built()
    state = strategy.aggregate(START, THREE)
    body = pack_state(state)
    (tmp_path / "state").write_bytes(encode_body(body))
    revived = unpack_state(open_parameters(tmp_path / "state")[1], state.latest)
    again, expected = strategy.aggregate(revived, THREE), strategy.aggregate(state, THREE)
    assert digest_arrays(again.memory) == digest_arrays(expected.memory)
    for one in THREE:
        assert digest_arrays(strategy.personalise(again, one).arrays) == digest_arrays(
            strategy.personalise(expected, one).arrays
        )


def test_the_order_in_which_updates_came_changes_no_byte_of_the_weights() -> None:
    found = {digest_arrays(built().aggregate(START, order).memory) for order in permutations(THREE)}
    assert len(found) == 1


@pytest.mark.parametrize(("own", "shared"), [({}, 5), ({"shares": "filter"}, 1)])
def test_coefficients_alone_may_be_shared(own: dict[str, Any], shared: int) -> None:
    assert len(built(**own).declaration(settings(**own)).tensors) == shared


def test_a_silo_that_floods_its_signature_takes_over_nobody() -> None:
    """Distances from it become huge, and the others' rows give it no more than an equal share."""
    huge = Update("cyd", {**THREE[2].arrays, LOW: np.full((3, 4), 3e38, np.float32)}, {})
    for own in ({}, {"weight_floor": 0.0, "gamma": 1.0}):
        found = recall_collaboration(built(**own).aggregate(START, [*THREE[:2], huge]).memory)
        assert found is not None and np.isfinite(found.weights).all()
        np.testing.assert_allclose(found.weights.sum(axis=2), 1.0, rtol=0, atol=1e-6)


def test_what_a_silo_keeps_of_its_own_has_a_floor() -> None:
    for own, floor in ({"least_own": 0.8}, 0.8), ({}, 0.5):
        found = recall_collaboration(built(**own).aggregate(START, THREE).memory)
        assert found is not None and (np.diagonal(found.weights, axis1=1, axis2=2) >= floor - 1e-6).all()


def test_a_silo_takes_part_only_where_its_policy_names_it_and_never_under_masks_or_noise() -> None:
    strategy, method = built(), settings()
    assert "fedgsp" not in USUAL_STRATEGIES and "fedsgd" not in USUAL_STRATEGIES
    with pytest.raises(PrivacyError, match="'fedgsp' tells features of this silo"):
        allowed_declaration(strategy, method, Policy(), secure=False)
    declared = allowed_declaration(strategy, method, Policy(strategies=("fedgsp",)), secure=False)
    assert [spec.name for spec in declared.reports] == [LOW, HIGH]
    with pytest.raises(SettingsError, match="a mean of its own, by single features"):
        secure_declaration(declared, strategy, method)
    with pytest.raises(ValueError, match=r"for which no noise is known, got \['signature\.low', 'signature\.high'\]"):
        require_accountable(strategy, method, counts=False)


def test_weights_begin_at_all_others_alike() -> None:
    np.testing.assert_allclose(begin_weights(3), [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])


def test_a_silo_with_a_signature_of_any_length_is_not_the_model_of_all_others() -> None:
    honest = []
    for seed in range(6):
        arrays = update(f"silo-{seed}", seed).arrays
        units = {n: arrays[n] / np.linalg.norm(arrays[n], axis=1)[:, None] for n in (LOW, HIGH)}
        honest.append(Update(f"silo-{seed}", {**arrays, **units}, {}))

    def taken(length: float) -> float:
        """The most that an honest silo takes of one that lies, alike at low frequencies and unlike at high ones."""
        sides = {LOW: np.mean([one.arrays[LOW] for one in honest], axis=0), HIGH: np.ones((3, 4)) / 2 * length}
        liar = update("x", 9)
        arrays = {**liar.arrays, **{name: side.astype(np.float32) for name, side in sides.items()}}
        state = built().aggregate(START, [*honest, Update("x", arrays, {})])
        found = recall_collaboration(state.memory)
        assert found is not None
        np.testing.assert_allclose(found.weights.sum(2), 1.0, atol=1e-6)
        return float(found.overall[:-1, -1].max())

    assert taken(1.0) < 0.9
    for length in (10.0, 1e3, 1e30):
        assert taken(length) == pytest.approx(taken(1.0), abs=1e-6)
