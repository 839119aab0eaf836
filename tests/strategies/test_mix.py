"""What a client makes of the mean for itself is what the aggregator would have sent it, for every strategy that may."""

from __future__ import annotations

import numpy as np
import pytest

from shared.method.exchanged import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies import SHARES_ITEMS, STRATEGIES, build_strategy
from shared.strategies.strategy import Strategy

METHOD = MethodSettings(width=4, layers=1)
NAMES = ("ada", "bob", "cyd")
BUILT = [build_strategy(name, METHOD) for name in STRATEGIES if name not in SHARES_ITEMS]
SUMMABLE = [one for one in BUILT if not one.needs_single_updates]


def updates(strategy: Strategy) -> list[Update]:
    rng, specification = np.random.default_rng(0), strategy.declaration(METHOD).tensors
    return [
        Update(
            name,
            {spec.name: rng.normal(size=spec.shape).astype(np.float32) for spec in specification},
            {scalar: float(rng.uniform(0, 0.3)) for scalar in strategy.scalars},
        )
        for name in NAMES
    ]


def test_the_strategies_that_may_be_secure_are_known() -> None:
    assert {one.name for one in SUMMABLE} == {"lpsfed", "fedavg", "fedprox", "fedper", "fedssp", "local"}


@pytest.mark.parametrize("strategy", SUMMABLE, ids=lambda one: one.name)
def test_mixing_at_the_client_gives_what_personalising_at_the_aggregator_gives(strategy: Strategy) -> None:
    sent = updates(strategy)
    before = State({spec.name: np.zeros(spec.shape, np.float32) for spec in strategy.declaration(METHOD).tensors})
    state = strategy.aggregate(before, sent)
    for update in sent:
        expected = strategy.personalise(state, update)
        mean, own = (
            Parameters(state.arrays, strategy.returned_scalars(state)),
            Parameters(update.arrays, update.scalars),
        )
        mixing = strategy.mixing
        got = mean if mixing is None else mixing.mix(mixing.tell(state.latest, update.client), mean, own)
        assert got.scalars == expected.scalars and set(got.arrays) == set(expected.arrays)
        for name, value in expected.arrays.items():
            np.testing.assert_array_equal(got.arrays[name], value)
