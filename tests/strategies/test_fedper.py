"""FedPer: the pooling MLP is shared, the predictive MLP stays."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np

from shared.method.exchanged import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies.fedper import fedper
from shared.strategies.local_client import PLAIN, LocalClient

FEDPER = fedper(MethodSettings())
POOLING = ["pooling.hidden.bias", "pooling.hidden.weight", "pooling.output.bias", "pooling.output.weight"]


def test_the_pooling_mlp_alone_is_declared() -> None:
    declared = FEDPER.declaration(MethodSettings())
    assert ([spec.name for spec in declared.tensors], declared.scalars) == (POOLING, ())


def test_a_client_trains_everything_and_sends_the_base_layers() -> None:
    client, one = Mock(spec=LocalClient), np.ones(1, dtype=np.float32)
    client.arrays.return_value = dict.fromkeys((*POOLING, "predictive.output.bias", "predictive.hidden.weight"), one)
    sent = FEDPER.fit(client, Parameters({}))
    assert [call[0] for call in client.method_calls] == ["load", "train", "arrays"]
    client.train.assert_called_once_with(PLAIN)  # no `only`: the personalisation layers learn too
    assert sorted(sent.arrays) == POOLING and sent.scalars == {}


def test_the_answer_has_base_layers_alone_so_that_a_client_keeps_its_predictive_mlp() -> None:
    updates = [Update(name, {POOLING[0]: np.array([v], dtype=np.float32)}, {}) for name, v in (("a", 1.0), ("b", 3.0))]
    state = FEDPER.aggregate(State({POOLING[0]: np.zeros(1, dtype=np.float32)}), updates)
    answer = FEDPER.personalise(state, updates[1])
    assert {name: value.tolist() for name, value in answer.arrays.items()} == {POOLING[0]: [2.0]}
