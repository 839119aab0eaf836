"""The noise has the distribution that the account is made for, lies on a grid, and is nobody's to guess or repeat."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from scipy import stats

from client_service.privacy.mechanism import MANTISSA, Noise, add_noise, draw_noise, grid

SECRET = hashlib.sha256(b"a secret of the tests").digest()
MANY = 200_000
NOTHING = np.zeros(MANY)


def noise(occasion: str = "round 1") -> Noise:
    return Noise(SECRET, occasion)


@pytest.mark.parametrize(("mechanism", "law"), [("gaussian", stats.norm), ("laplace", stats.laplace)])
@pytest.mark.parametrize(("radius", "multiplier"), [(0.05, 1.0), (3.0, 0.25), (1e-4, 40.0)])
def test_the_noise_has_the_scale_that_was_configured(
    mechanism: Any, law: Any, radius: float, multiplier: float
) -> None:
    found = add_noise(NOTHING, radius, multiplier, "tensors", mechanism, noise())
    scale = multiplier * 2.0 * radius  # the sensitivity of what is clipped to a norm is twice that norm
    assert stats.kstest(found / scale, law.cdf).pvalue > 0.01
    assert np.std(found) / scale == pytest.approx(law.std(), rel=0.01)
    assert abs(np.mean(found)) / scale < 5.0 / np.sqrt(MANY)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5.0 / np.sqrt(MANY)


@pytest.mark.parametrize(("mechanism", "law"), [("gaussian", stats.norm), ("laplace", stats.laplace)])
def test_the_draw_is_the_inverse_of_the_distribution_far_into_its_tails(mechanism: Any, law: Any) -> None:
    ones = (1 << 64) - 1
    for zeros in (0, 1, 10, 40, MANTISSA - 1):
        words = np.array([[ones >> zeros], [1 << 63 | 1]], dtype=np.uint64)  # 0.75 / 2^zeros, and the sign is plus
        [found] = draw_noise(words, mechanism)
        assert law.sf(found) * 2.0 == pytest.approx(0.75 * 2.0**-zeros, rel=1e-9)
        assert draw_noise(words - np.array([[0], [1]], dtype=np.uint64), mechanism)[0] == -found


def test_the_worst_words_give_finite_noise() -> None:
    words = np.array([[0, 0, (1 << 64) - 1], [0, (1 << 64) - 1, (1 << 64) - 1]], dtype=np.uint64)
    assert np.isfinite(draw_noise(words, "gaussian")).all() and np.isfinite(draw_noise(words, "laplace")).all()


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_what_leaves_lies_on_one_grid_whatever_was_hidden(mechanism: Any) -> None:
    step = grid(2.0 * 0.05 * 1.5)
    for values in (NOTHING, np.random.default_rng(1).uniform(-1e-4, 1e-4, MANY)):
        steps = add_noise(values, 0.05, 1.5, "tensors", mechanism, noise()) / step
        assert (steps == np.rint(steps)).all()
    assert 2.0**-21 <= step / (2.0 * 0.05 * 1.5) <= 2.0**-20 and np.frexp(step)[0] == 0.5


class Still(Noise):
    """Noise that happens to be nothing."""

    def draws(self, purpose: str, content: Any, mechanism: Any) -> Any:
        del self, purpose, mechanism
        return np.full(content.shape, -0.0)


def test_a_value_that_was_cut_off_leaves_no_sign() -> None:
    found = add_noise(np.array([-1e-12, 1e-12]), 1.0, 1.0, "tensors", "gaussian", Still(SECRET, "round 1"))
    assert found.tolist() == [0.0, 0.0] and not np.signbit(found).any()


def test_the_same_draw_comes_out_the_same_again() -> None:
    first, again = (add_noise(NOTHING[:9], 1.0, 1.0, "tensors", "gaussian", noise()) for _ in range(2))
    assert (first == again).all()


@pytest.mark.parametrize("other", ["secret", "occasion", "purpose", "content"])
def test_another_secret_round_purpose_or_content_has_other_noise(other: str) -> None:
    values = NOTHING[:1000].copy()
    first = add_noise(values, 1.0, 1.0, "tensors", "gaussian", noise())
    source = (
        Noise(bytes(32), "round 1") if other == "secret" else noise("round 2" if other == "occasion" else "round 1")
    )
    content = values if other != "content" else values + 0.5
    second = add_noise(content, 1.0, 1.0, "margin" if other == "purpose" else "tensors", "gaussian", source) - content
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2 and not np.isclose(first, second).any()
