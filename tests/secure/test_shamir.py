"""Any `threshold` shares restore a secret; one fewer fits every secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ProtocolError
from shared.secure import shamir
from shared.secure.shamir import PRIME

SECRETS = st.binary(min_size=32, max_size=32)
SECRET = bytes(range(32))


def restored(shares: list[int], points: list[int]) -> bytes:
    return shamir.restore({x: shares[x - 1] for x in points}, shamir.weights(points))


@st.composite
def splits(draw: st.DrawFn, fewest: int = 1) -> tuple[bytes, int, int, list[int]]:
    """A secret, how many shares, how many restore it, and an order of the holders."""
    count = draw(st.integers(fewest, 12))
    return draw(SECRETS), count, draw(st.integers(fewest, count)), draw(st.permutations(range(1, count + 1)))


@given(splits())
def test_any_shares_of_the_threshold_restore_the_secret(drawn: tuple[bytes, int, int, list[int]]) -> None:
    secret, count, threshold, order = drawn
    shares = shamir.split(secret, count, threshold)
    assert len(shares) == count and restored(shares, order[:threshold]) == secret
    assert restored(shares, order) == secret


@given(splits(fewest=2), SECRETS)
def test_one_share_fewer_fits_every_other_secret_too(drawn: tuple[bytes, int, int, list[int]], other: bytes) -> None:
    secret, count, threshold, order = drawn
    shares, chosen = shamir.split(secret, count, threshold), order[:threshold]
    weights, last = shamir.weights(chosen), chosen[-1]
    known = sum(shares[x - 1] * weights[x] for x in chosen[:-1])
    fitting = (int.from_bytes(other) - known) * pow(weights[last], -1, PRIME) % PRIME
    assert shamir.restore({x: shares[x - 1] for x in chosen[:-1]} | {last: fitting}, weights) == other


@given(splits(fewest=2))
def test_the_polynomial_has_the_full_degree(drawn: tuple[bytes, int, int, list[int]]) -> None:
    secret, count, threshold, order = drawn
    points = order[: threshold - 1]
    value = sum(shamir.split(secret, count, threshold)[x - 1] * w for x, w in shamir.weights(points).items()) % PRIME
    assert value != int.from_bytes(secret)


def test_shares_are_drawn_anew_each_time() -> None:
    first, second = (shamir.split(SECRET, 4, 3) for _ in range(2))
    assert not set(first) & set(second)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_least_and_the_largest_secret_fit_the_field(secret: bytes) -> None:
    assert restored(shamir.split(secret, 3, 3), [1, 2, 3]) == secret


def probably_prime(number: int) -> bool:
    """Miller-Rabin with forty bases."""
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for base in range(2, 42):
        powers = [pow(base, (number - 1) >> (twos - square), number) for square in range(twos)]
        if powers[0] != 1 and number - 1 not in powers:
            return False
    return True


def test_the_field_is_the_least_prime_above_all_secrets() -> None:
    assert next(n for n in range(2**256 + 1, 2**256 + 1000, 2) if probably_prime(n)) == PRIME


def test_a_wrong_share_restores_another_secret_or_none() -> None:
    shares = shamir.split(SECRET, 4, 3)
    shares[0] = (shares[0] + 1) % PRIME
    try:
        assert restored(shares, [1, 2, 3]) != SECRET
    except ProtocolError as error:
        assert "fit none" in str(error)


def test_shares_whose_value_is_no_secret_of_32_bytes_are_refused() -> None:
    with pytest.raises(ProtocolError, match="fit none"):
        shamir.restore({1: PRIME - 1}, {1: 1})


@pytest.mark.parametrize(("count", "threshold"), [(3, 4), (3, 0)])
def test_a_threshold_that_cannot_be_met_is_refused(count: int, threshold: int) -> None:
    with pytest.raises(ProtocolError, match=f"got {threshold}"):
        shamir.split(SECRET, count, threshold)


def test_a_secret_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="got 31"):
        shamir.split(SECRET[1:], 3, 2)


@pytest.mark.parametrize("points", [[1, 1], [0, 1], [PRIME, 1]])
def test_shares_of_one_holder_twice_or_of_none_are_refused(points: list[int]) -> None:
    with pytest.raises(ProtocolError, match="different holders"):
        shamir.weights(points)
