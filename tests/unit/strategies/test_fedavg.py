"""FedAvg: everybody gets the plain mean, and no scalar leaves."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.method.parameters import State, Update
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from shared.strategies.fedavg import fedavg

NAME = "pooling.output.bias"
FEDAVG = fedavg(MethodSettings())


def update(client: str, *values: float) -> Update:
    return Update(client, {NAME: np.array(values, dtype=np.float32)}, {})


def test_everybody_gets_the_unweighted_mean_also_one_that_never_sent() -> None:
    updates = [update("a", 1.0, 0.0), update("b", 2.0, -3.0), update("c", 6.0, 0.0)]
    state = FEDAVG.aggregate(State({NAME: np.zeros(2, dtype=np.float32)}), updates)
    for asker in (*updates, None):
        answer = FEDAVG.personalise(state, asker)
        assert answer.arrays[NAME].tolist() == [3.0, -1.0]  # 9 / 3 and -3 / 3
        assert dict(answer.scalars) == {}


def test_the_mean_of_many_float32_is_as_exact_as_float32_can_hold() -> None:
    # 2^24 + 1 is no float32: adding 1.0 to 2^24 three times in float32 would change nothing. 2^24 + 4 is one.
    updates = [update("a", 2.0**24), *(update(name, 2.0**24 + 4.0) for name in "bc"), update("d", 2.0**24 + 8.0)]
    state = FEDAVG.aggregate(State({NAME: np.zeros(1, dtype=np.float32)}), updates)
    assert state.arrays[NAME].tolist() == [2.0**24 + 4.0]


def test_an_unknown_strategy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(SettingsError, match=r"expected one of lpsfed, fedavg, local, .* got 'fedprim'"):
        build_strategy("fedprim", MethodSettings())
