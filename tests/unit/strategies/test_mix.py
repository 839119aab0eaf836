"""What a client makes of the mean for itself is what the aggregator would have sent it, for every strategy that may."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.agreement import secure_declaration
from shared.strategies.strategy import Strategy

METHOD = MethodSettings(width=4, layers=1, catalogue=5, nodes=NodeSettings(features=3, classes=2))
BUILT = [build_strategy(name, METHOD) for name in STRATEGIES]
SUMMABLE = [one for one in BUILT if one.combine is None and one.answer is None]
"""By their own records: the mean of the updates is all that their aggregator needs."""


@pytest.mark.parametrize("strategy", BUILT, ids=lambda one: one.name)
def test_a_strategy_may_be_secure_where_it_sends_something_and_needs_the_mean_alone(strategy: Strategy) -> None:
    declared = strategy.declaration(METHOD)
    if strategy in SUMMABLE and declared.tensors:
        assert secure_declaration(declared, strategy, METHOD).secure
    else:
        with pytest.raises(SettingsError, match=r"the mean alone|server_step\.magnitudes = reported"):
            secure_declaration(declared, strategy, METHOD)


@pytest.mark.parametrize("strategy", SUMMABLE, ids=lambda one: one.name)
def test_mixing_at_the_client_gives_what_personalising_at_the_aggregator_gives(strategy: Strategy) -> None:
    rng, declared = np.random.default_rng(0), strategy.declaration(METHOD)
    sent = [
        Update(
            name,
            {spec.name: rng.normal(size=spec.shape).astype(np.float32) for spec in declared.uploaded},
            {scalar: float(rng.uniform(0, 0.3)) for scalar in strategy.scalars},
        )
        for name in ("ada", "bob", "cyd")
    ]
    before = State({spec.name: np.zeros(spec.shape, np.float32) for spec in declared.tensors})
    state = strategy.aggregate(before, sent)
    mean, mixing = Parameters(state.arrays, strategy.returned_scalars(state)), strategy.mixing
    for update in sent:
        expected, own = strategy.personalise(state, update), Parameters(update.arrays, update.scalars)
        got = mean if mixing is None else mixing.mix(mixing.scalars_of(state.latest, update.client), mean, own)
        assert got.scalars == expected.scalars and set(got.arrays) == set(expected.arrays)
        for name, value in expected.arrays.items():
            np.testing.assert_array_equal(got.arrays[name], value)
