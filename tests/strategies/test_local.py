"""Local-only training: the client trains as LPSFed does, and nothing leaves it."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np

from shared.method.exchanged import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies.local import local
from shared.strategies.local_client import LocalClient, Objective

LOCAL = local(MethodSettings())


def test_nothing_is_declared() -> None:
    declared = LOCAL.declaration(MethodSettings())
    assert (declared.strategy, declared.tensors, declared.scalars) == ("local", (), ())


def test_a_client_trains_with_its_own_margin_and_is_asked_for_nothing_to_send() -> None:
    client, received = Mock(spec=LocalClient), Parameters({"pooling.output.bias": np.ones(1, dtype=np.float32)})
    sent = LOCAL.fit(client, received)
    assert [call[0] for call in client.method_calls] == ["load", "train"]
    client.load.assert_called_once_with(received)
    client.train.assert_called_once_with(Objective(bias_aware=True))
    assert (dict(sent.arrays), dict(sent.scalars)) == ({}, {})


def test_what_comes_back_is_empty_so_that_a_client_keeps_its_own() -> None:
    state = LOCAL.aggregate(State({}), [Update("a", {}, {}), Update("b", {}, {})])
    answer = LOCAL.personalise(state, Update("a", {}, {}))
    assert (dict(answer.arrays), dict(answer.scalars)) == ({}, {})
