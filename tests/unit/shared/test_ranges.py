"""What each declared scalar may be: sound bounds, clear refusals, and clamping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ProtocolError
from shared.method.divergence import ZERO, divergence, greatest_divergence, kernel
from shared.method.settings import MethodSettings
from shared.method.tensors import ROUNDING, Range, clamp_scalars, require_in_ranges
from shared.strategies import STRATEGIES, build_strategy

RANGES = {"margin": Range(0.0, 0.5), "rho": Range(0.0, 9.0)}


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_scalar_of_every_strategy_has_a_range(name: str) -> None:
    strategy = build_strategy(name, MethodSettings(catalogue=5))
    assert set(strategy.ranges) == set(strategy.scalars)
    assert all(one.least < one.most < math.inf for one in strategy.ranges.values())


def test_a_scalar_out_of_its_range_is_named_with_what_was_expected_and_what_came() -> None:
    require_in_ranges(RANGES, {"margin": 0.5, "rho": 0.0})
    with pytest.raises(ProtocolError, match=r"^rho: expected a number from 0 to 9, got 57\.3$"):
        require_in_ranges(RANGES, {"margin": 0.1, "rho": 57.3})
    with pytest.raises(ProtocolError, match=r"^margin: expected a number from 0 to 0\.5, got -0\.25$"):
        require_in_ranges(RANGES, {"margin": -0.25, "rho": 0.3})
    with pytest.raises(ProtocolError, match="got nan"):
        require_in_ranges(RANGES, {"rho": math.nan})


def test_what_is_clamped_is_within_and_what_was_within_stays() -> None:
    assert clamp_scalars(RANGES, {"margin": -3.0, "rho": 4.0}) == {"margin": 0.0, "rho": 4.0}
    require_in_ranges(RANGES, clamp_scalars(RANGES, {"margin": 1e9, "rho": -1e9}))


@given(
    st.lists(st.floats(2 * ZERO, 1.0), min_size=8, max_size=40),
    st.lists(st.floats(2 * ZERO, 1.0), min_size=8, max_size=40),
)
def test_no_divergence_is_above_the_bound(anchor: list[float], own: list[float]) -> None:
    found = divergence(kernel(np.array(anchor)), kernel(np.array(own)))
    assert found is not None and 0.0 <= found <= greatest_divergence(max(len(anchor), len(own)))


def test_the_bound_is_not_far_above_what_can_be() -> None:
    # All weight of the anchor where the client has next to none.
    anchor, own = np.full(64, 2 * ZERO), np.ones(64)
    anchor[-1], own[0] = 1.0, 2 * ZERO
    found = divergence(kernel(anchor), np.roll(kernel(own), -1))
    assert found is not None and greatest_divergence(64) - 1 < found < greatest_divergence(64)


def test_the_mean_margin_may_be_as_large_as_gamma_times_pi() -> None:
    ranges = build_strategy("lpsfed", MethodSettings(margin_strength=0.1)).ranges
    assert ranges["margin"].most == pytest.approx(0.1 * math.pi + ROUNDING) and ranges["margin"].least == -ROUNDING
    assert ranges["rho"].most == pytest.approx(math.log(128 / ZERO), rel=1e-4)
    trained = build_strategy("lpsfed", MethodSettings(signal="trained")).ranges["rho"]
    assert trained.most > ranges["rho"].most and trained.least == 0.0
