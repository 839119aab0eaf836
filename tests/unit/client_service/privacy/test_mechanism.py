"""What leaves is what was received, a change of bounded norm, and noise; and each scalar from its range alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_service.privacy.accounting import Charge
from client_service.privacy.mechanism import Noise, Release, clip_change, privatise
from client_service.privacy.settings import PrivacySettings
from shared.errors import PrivacyError
from shared.method.parameters import Float32, Parameters

NOISE = Noise(bytes(range(32)), "round 1")
RECEIVED = {"a.weight": np.full((2, 3), 0.5, np.float32), "b.bias": np.array([-1.0], np.float32)}
BOTH = ("margin", "rho")


def gaussian(**changes: Any) -> PrivacySettings:
    values = {"mechanism": "gaussian", "clip_norm": 1.0, "noise_multiplier": 1e-9, "delta": 1e-5, "budget": 1e9}
    return PrivacySettings.model_validate(values | changes)


def laplace(**changes: Any) -> PrivacySettings:
    values = {"mechanism": "laplace", "clip_norm": 1.0, "round_epsilon": 1e9, "budget": 1e12}
    return PrivacySettings.model_validate(values | changes)


def moved(by: float) -> dict[str, Float32]:
    return {name: value + np.float32(by) for name, value in RECEIVED.items()}


def change(release: Release) -> np.ndarray[Any, Any]:
    arrays = release.parameters.arrays
    return np.concatenate([(arrays[name].astype(float) - RECEIVED[name]).ravel() for name in sorted(RECEIVED)])


def released(
    settings: PrivacySettings, arrays: Any = None, scalars: dict[str, float] | None = None, **more: Any
) -> Release:
    update = Parameters(
        RECEIVED if arrays is None else arrays, {"margin": 0.1, "rho": 0.01} if scalars is None else scalars
    )
    return privatise(RECEIVED, update, BOTH, settings, NOISE, **more)


def test_a_small_change_leaves_as_it_is_where_the_noise_is_nearly_nothing() -> None:
    found = released(gaussian(), moved(0.25))
    np.testing.assert_allclose(change(found), 0.25, atol=1e-6)
    assert {name: (value.dtype, value.shape) for name, value in found.parameters.arrays.items()} == {
        name: (np.dtype(np.float32), value.shape) for name, value in RECEIVED.items()
    }
    assert found.parameters.scalars == pytest.approx({"margin": 0.1, "rho": 0.01}, abs=1e-6)
    assert all(type(value) is float for value in found.parameters.scalars.values())


@pytest.mark.parametrize(("settings", "order"), [(gaussian(clip_norm=0.1), 2), (laplace(clip_norm=0.1), 1)])
def test_a_large_change_of_all_tensors_together_is_cut_to_the_norm(settings: PrivacySettings, order: int) -> None:
    found = change(released(settings, moved(3.0)))
    assert np.linalg.norm(found, order) == pytest.approx(0.1, abs=1e-5)
    np.testing.assert_allclose(found, found[0], atol=1e-6)


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.sampled_from(["gaussian", "laplace"]))
def test_nothing_that_is_clipped_is_longer_than_the_norm(values: list[float], mechanism: Any) -> None:
    found = clip_change(np.array(values), 0.7, mechanism)
    assert np.linalg.norm(found, 2 if mechanism == "gaussian" else 1) <= 0.7


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_counts_as_no_change(bad: float) -> None:
    found = released(gaussian(), moved(bad), {"margin": bad, "rho": bad})
    np.testing.assert_allclose(change(found), 0.0, atol=1e-6)
    assert found.parameters.scalars == pytest.approx({"margin": 0.0, "rho": 0.0}, abs=1e-6)


@pytest.mark.parametrize(("value", "expected"), [(-5.0, 0.0), (0.05, 0.05), (9.0, 0.32)])
def test_a_scalar_is_clipped_into_its_range(value: float, expected: float) -> None:
    found = released(gaussian(), scalars={"margin": value, "rho": 0.0})
    assert found.parameters.scalars["margin"] == pytest.approx(expected, abs=1e-6)


def test_that_there_is_no_rho_is_hidden_too() -> None:
    found = released(gaussian(), scalars={"margin": 0.1})
    assert set(found.parameters.scalars) == {"margin", "rho"} == set(found.charges) - {"tensors"}
    assert found.parameters.scalars["rho"] == pytest.approx(0.0, abs=1e-6)


def test_noise_never_carries_a_scalar_out_of_its_range() -> None:
    settings = gaussian(scalar_noise_multiplier=10.0)
    for number in range(50):
        noise = Noise(bytes(32), str(number))
        scalars = privatise(RECEIVED, Parameters(RECEIVED, {"margin": 0.1}), BOTH, settings, noise).parameters.scalars
        assert 0.0 <= scalars["margin"] <= 0.32 and 0.0 <= scalars["rho"] <= 0.02


def test_each_part_is_charged_at_its_own_noise() -> None:
    settings = gaussian(noise_multiplier=2.0, scalar_noise_multiplier=7.0)
    assert released(settings).charges == {
        "tensors": Charge("gaussian", 2.0),
        "margin": Charge("gaussian", 7.0),
        "rho": Charge("gaussian", 7.0),
    }


def test_a_scalar_that_was_drawn_before_leaves_as_it_is_and_costs_nothing() -> None:
    found = released(gaussian(scalar_noise_multiplier=3.0), kept={"rho": 0.0123})
    assert found.parameters.scalars["rho"] == 0.0123 and set(found.charges) == {"tensors", "margin"}


def test_only_what_is_declared_leaves() -> None:
    update = Parameters(RECEIVED, {"margin": 0.1, "rho": 0.01, "ndcg": 0.9})
    assert set(privatise(RECEIVED, update, ("margin",), gaussian(), NOISE).parameters.scalars) == {"margin"}


def test_a_tensor_that_never_came_is_no_change_of_anything() -> None:
    with pytest.raises(PrivacyError, match=r"got none of \['c'\]"):
        released(gaussian(), {**RECEIVED, "c": np.zeros(1, np.float32)})


def test_tensors_are_noised_by_the_scale_that_is_charged() -> None:
    received = {"w": np.zeros((100, 1000), np.float32)}
    settings = gaussian(noise_multiplier=0.5, clip_norm=0.2)
    found = privatise(received, Parameters(received, {}), (), settings, NOISE).parameters.arrays["w"]
    assert np.std(found) == pytest.approx(0.5 * 2 * 0.2, rel=0.01)
