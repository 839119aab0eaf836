"""FedProx: FedAvg with a pull to what was received."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from shared.method.exchange import mlp_specification
from shared.method.exchanged import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies.fedprox import ProximalPenalty, fedprox
from shared.strategies.local_client import LocalClient, Objective

NAME = "pooling.output.bias"
FEDPROX = fedprox(MethodSettings())


def test_the_penalty_is_half_mu_times_the_squared_distance_and_leaves_private_parameters_alone() -> None:
    own = {NAME: np.array([3.0, 1.0]), "predictive.output.bias": np.array([2.0]), "embedding": np.array([9.0])}
    received = {NAME: np.array([1.0, 1.0]), "predictive.output.bias": np.array([-1.0])}
    assert ProximalPenalty(0.01)(own, received) == pytest.approx(0.005 * (4.0 + 0.0 + 9.0))  # mu / 2 is .005


def test_a_client_trains_with_the_penalty_and_without_a_margin() -> None:
    client, received = Mock(spec=LocalClient), Parameters({})
    client.arrays.return_value = {NAME: np.ones(1, dtype=np.float32)}
    sent = FEDPROX.fit(client, received)
    assert [call[0] for call in client.method_calls] == ["load", "train", "arrays"]
    client.load.assert_called_once_with(received)
    client.train.assert_called_once_with(Objective(penalty=ProximalPenalty(0.01)))
    assert sent.arrays is client.arrays.return_value and sent.scalars == {}


def test_both_mlps_and_no_scalar_are_declared_and_everybody_gets_the_mean() -> None:
    declared = FEDPROX.declaration(MethodSettings())
    assert (declared.tensors, declared.scalars) == (
        tuple(tensor.spec for tensor in mlp_specification(MethodSettings())),
        (),
    )
    updates = [Update(name, {NAME: np.array([v], dtype=np.float32)}, {}) for name, v in (("a", 1.0), ("b", 4.0))]
    state = FEDPROX.aggregate(State({NAME: np.zeros(1, dtype=np.float32)}), updates)
    assert FEDPROX.personalise(state, updates[0]).arrays[NAME].tolist() == [2.5]
