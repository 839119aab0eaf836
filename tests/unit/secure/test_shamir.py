"""Any `threshold` shares restore a secret; one fewer fits every secret; commitments show whether shares are of one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ProtocolError
from shared.protocol.secure import group, shamir
from shared.protocol.secure.group import ORDER

SECRETS = st.integers(1, ORDER - 1)
SECRET = int.from_bytes(bytes(range(31)))


def restored(shares: list[int], points: list[int]) -> int:
    return shamir.restore_secret({x: shares[x - 1] for x in points}, shamir.lagrange_weights(points))


@st.composite
def splits(draw: st.DrawFn, fewest: int = 1) -> tuple[int, int, int, list[int]]:
    """A secret, how many shares, how many restore it, and an order of the holders."""
    count = draw(st.integers(fewest, 12))
    return draw(SECRETS), count, draw(st.integers(fewest, count)), draw(st.permutations(range(1, count + 1)))


@given(splits())
def test_any_shares_of_the_threshold_restore_the_secret(drawn: tuple[int, int, int, list[int]]) -> None:
    secret, count, threshold, order = drawn
    shares = shamir.split_secret(secret, count, threshold)
    assert len(shares) == count and restored(shares, order[:threshold]) == secret
    assert restored(shares, order) == secret


@given(splits(fewest=2), SECRETS)
def test_one_share_fewer_fits_every_other_secret_too(drawn: tuple[int, int, int, list[int]], other: int) -> None:
    secret, count, threshold, order = drawn
    shares, chosen = shamir.split_secret(secret, count, threshold), order[:threshold]
    weights, last = shamir.lagrange_weights(chosen), chosen[-1]
    known = sum(shares[x - 1] * weights[x] for x in chosen[:-1])
    fitting = (other - known) * pow(weights[last], -1, ORDER) % ORDER
    assert shamir.restore_secret({x: shares[x - 1] for x in chosen[:-1]} | {last: fitting}, weights) == other


@given(splits(fewest=2))
def test_the_polynomial_has_the_full_degree(drawn: tuple[int, int, int, list[int]]) -> None:
    secret, count, threshold, order = drawn
    assert restored(shamir.split_secret(secret, count, threshold), order[: threshold - 1]) != secret


def test_shares_are_drawn_anew_each_time() -> None:
    first, second = (shamir.split_secret(SECRET, 4, 3) for _ in range(2))
    assert not set(first) & set(second)


def test_the_order_of_the_field_is_that_of_the_group() -> None:
    """RFC 8032: L = 2^252 + 27742317777372353535851937790883648493; L times the base point is the neutral element."""
    assert group.add(group.multiply_base(ORDER - 1), group.multiply_base(1)).hex() == f"{1:02x}" + "00" * 31


@pytest.mark.parametrize(("count", "threshold"), [(3, 4), (3, 0)])
def test_a_threshold_that_cannot_be_met_is_refused(count: int, threshold: int) -> None:
    with pytest.raises(ProtocolError, match=f"got {threshold}"):
        shamir.split_secret(SECRET, count, threshold)


@pytest.mark.parametrize("secret", [0, ORDER, -1])
def test_a_secret_that_is_no_scalar_is_refused(secret: int) -> None:
    with pytest.raises(ProtocolError, match="got another"):
        shamir.split_secret(secret, 3, 2)


@pytest.mark.parametrize("points", [[1, 1], [0, 1], [ORDER, 1]])
def test_shares_of_one_holder_twice_or_of_none_are_refused(points: list[int]) -> None:
    with pytest.raises(ProtocolError, match="different holders"):
        shamir.lagrange_weights(points)


# --- one polynomial for all


@given(splits())
@settings(max_examples=25, deadline=None)
def test_values_of_one_polynomial_are_consistent(drawn: tuple[int, int, int, list[int]]) -> None:
    secret, count, threshold, _ = drawn
    shamir.require_consistent([secret, *shamir.split_secret(secret, count, threshold)], threshold)


@given(splits(fewest=2), st.data())
@settings(max_examples=25, deadline=None)
def test_a_single_value_of_another_polynomial_shows(
    drawn: tuple[int, int, int, list[int]], data: st.DataObject
) -> None:
    """Also the one at 0, which is of the secret."""
    secret, count, threshold, _ = drawn
    values, place = [secret, *shamir.split_secret(secret, count, threshold)], data.draw(st.integers(0, count))
    values[place] = (values[place] + 1) % ORDER
    with pytest.raises(ProtocolError, match=f"any {threshold} of which restore it"):
        shamir.require_consistent(values, threshold)


def test_a_polynomial_of_too_high_a_degree_shows() -> None:
    """As many as the threshold would restore something else than the secret."""
    with pytest.raises(ProtocolError, match="any 3 of which"):
        shamir.require_consistent([SECRET, *shamir.split_secret(SECRET, 5, 4)], 3)


@pytest.mark.parametrize("threshold", [1, 23, 24, 25, 100])
def test_a_long_polynomial_is_evaluated_as_step_by_step(threshold: int) -> None:
    coefficients = [pow(3, 200 + place, ORDER) for place in range(threshold)]
    for x in (1, 2, 1024):
        expected = sum(one * pow(x, place, ORDER) for place, one in enumerate(coefficients)) % ORDER
        assert shamir._evaluate(coefficients, x) == expected
