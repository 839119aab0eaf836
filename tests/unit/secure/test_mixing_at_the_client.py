"""Secure mode: the client mixes for itself (Eq. 14), and has what the open mode would have sent it."""

from __future__ import annotations

import numpy as np
import pytest

from shared.method.parameters import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import initial_parameters, mlp_specification
from shared.protocol.secure.fixed_point import STEP
from shared.strategies.lpsfed import lpsfed, mix_by_similarity, similarities

METHOD = MethodSettings(width=8, similarity_floor=0.1)
RHO = {"ada": 0.3, "bob": 0.9, "cyd": 0.5, "dan": 0.35}
EPSILON = 2.0**-23  # of float32


def trained(seed: int, *, digits: np.dtype | type) -> dict[str, np.ndarray]:
    start = initial_parameters(mlp_specification(METHOD), seed, exact=False)
    return {name: value.astype(digits).astype(np.float32) for name, value in start.items()}


def clients(digits: np.dtype | type) -> dict[str, Parameters]:
    return {
        name: Parameters(trained(seed, digits=digits), {"margin": 0.1 + 0.25 * seed, "rho": rho})
        for seed, (name, rho) in enumerate(RHO.items())
    }


def opened(contents: dict[str, Parameters]) -> dict[str, Parameters]:
    """What the aggregator sends each client when it sees all updates."""
    strategy, updates = lpsfed(METHOD), {n: Update(n, c.arrays, c.scalars) for n, c in contents.items()}
    state = strategy.aggregate(State(contents["ada"].arrays), list(updates.values()))
    return {name: strategy.personalise(state, update) for name, update in updates.items()}


def hidden(rehearsal: type, contents: dict[str, Parameters]) -> dict[str, Parameters]:
    """What each client computes from the mean, its own update and the rhobar that the aggregator tells it."""
    made = rehearsal(contents)
    mean = made.play()
    near = similarities(made.round.open_scalars, METHOD.similarity_floor)
    return {name: mix_by_similarity({"rhobar": near[name]}, mean, content) for name, content in contents.items()}


def test_each_client_has_the_open_mode_s_parameters_to_within_the_fixed_point_s_precision(rehearsal: type) -> None:
    contents = clients(np.float32)
    expected, got = opened(contents), hidden(rehearsal, contents)
    for name, content in contents.items():
        assert got[name].scalars == pytest.approx(dict(expected[name].scalars), abs=STEP, rel=0)
        for tensor, value in expected[name].arrays.items():
            largest = np.maximum(np.abs(value), np.abs(content.arrays[tensor]))
            difference = np.abs(got[name].arrays[tensor].astype(np.float64) - value)
            assert (difference <= STEP + 2 * EPSILON * largest).all()


def test_weights_that_are_multiples_of_the_step_come_out_bit_for_bit(rehearsal: type) -> None:
    contents = clients(np.float16)  # 2^-24 divides a float16
    expected, got = opened(contents), hidden(rehearsal, contents)
    for name in contents:
        for tensor, value in expected[name].arrays.items():
            np.testing.assert_array_equal(got[name].arrays[tensor], value)


def test_the_clients_mix_differently_so_that_a_wrong_rhobar_would_show(rehearsal: type) -> None:
    got = hidden(rehearsal, clients(np.float32))
    firsts = {name: float(content.arrays["pooling.output.weight"][0, 0]) for name, content in got.items()}
    assert len(set(firsts.values())) == len(RHO)
    assert similarities({name: {"rho": rho} for name, rho in RHO.items()}, 0.1)["bob"] == 0.1
