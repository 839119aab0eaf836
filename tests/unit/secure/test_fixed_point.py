"""Numbers become whole multiples of 2^-40 modulo 2^64: nothing wraps, what does not fit is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from shared.errors import ProtocolError
from shared.protocol.secure import fixed_point
from shared.protocol.secure.fixed_point import LIMIT, MOST_CLIENTS, STEP, Ring

FLOATS = st.floats(-LIMIT, LIMIT, width=32)
WEIGHTS = arrays(np.float32, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=FLOATS)


def numerators(values: Ring) -> list[int]:
    return values.view(np.int64).reshape(-1).tolist()


def test_the_step_is_two_to_the_minus_forty_and_negative_numbers_are_two_s_complement() -> None:
    encoded = fixed_point.encode(np.array([1.0, -1.0, 0.0, 2.0**-40]), "x")
    assert encoded.dtype == np.uint64 and encoded.tolist() == [2**40, 2**64 - 2**40, 0, 1]


def test_a_tie_goes_to_the_even_neighbour() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) * STEP
    assert numerators(fixed_point.encode(halves, "x")) == [0, 2, 2, 0, -2]


@given(WEIGHTS)
def test_every_value_is_at_most_half_a_step_off_and_keeps_its_place(values: np.ndarray) -> None:
    encoded = fixed_point.encode(values, "x")
    assert isinstance(encoded, np.ndarray) and encoded.shape == values.shape
    for numerator, value in zip(numerators(encoded), values.reshape(-1).tolist(), strict=True):
        assert abs(Fraction(numerator, 2**40) - Fraction(value)) <= Fraction(STEP) / 2


@given(arrays(np.float32, 20, elements=FLOATS.filter(lambda value: value == 0 or abs(value) >= 2.0**-17)))
def test_a_float32_that_is_not_tiny_is_encoded_exactly(values: np.ndarray) -> None:
    assert [n * STEP for n in numerators(fixed_point.encode(values, "x"))] == values.tolist()


@given(st.lists(arrays(np.float32, 3, elements=FLOATS), min_size=1, max_size=8))
def test_the_mean_of_a_sum_stays_within_the_stated_bound(rows: list[np.ndarray]) -> None:
    encoded = np.array([fixed_point.encode(row, "x") for row in rows])
    got = fixed_point.mean(encoded.sum(axis=0, dtype=np.uint64), len(rows))
    for place in range(3):
        exact = sum(Fraction(float(row[place])) for row in rows) / len(rows)
        assert abs(Fraction(float(got[place])) - exact) <= Fraction(fixed_point.error_bound(abs(float(exact))))


@pytest.mark.parametrize("value", [LIMIT, -LIMIT])
def test_as_many_of_the_largest_as_there_may_be_do_not_wrap(value: float) -> None:
    total = fixed_point.encode(np.full(2, value), "x") * np.uint64(MOST_CLIENTS)
    assert fixed_point.mean(total, MOST_CLIENTS).tolist() == [value, value]


@pytest.mark.parametrize("bad", [np.nextafter(LIMIT, np.inf), -4097.0, np.inf, -np.inf, np.nan])
def test_a_value_that_does_not_fit_is_refused_by_its_tensor_s_name_and_not_told(bad: float) -> None:
    with pytest.raises(ProtocolError, match=r"from -4096 to 4096 in 'pooling.w', got 1 outside$"):
        fixed_point.encode(np.array([0.5, bad]), "pooling.w")


@pytest.mark.parametrize("count", [0, MOST_CLIENTS + 1])
def test_a_mean_over_a_number_of_clients_that_the_headroom_is_not_for_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"got {count}"):
        fixed_point.mean(np.zeros(1, dtype=np.uint64), count)
