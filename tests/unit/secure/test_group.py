"""The group's arithmetic is that of RFC 8032, and nothing else than its points is taken for one."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_sign_ed25519_pk_to_curve25519

from shared.errors import ProtocolError
from shared.protocol.secure import group
from shared.protocol.secure.group import ORDER

BASE = bytes.fromhex("5866666666666666666666666666666666666666666666666666666666666666")  # RFC 8032: y = 4/5
SMALL = ("00" * 32, "01" + "00" * 31, "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")


def test_the_base_point_and_its_multiples_are_those_of_the_standard() -> None:
    assert group.multiply_base(1) == group.multiply(1, BASE) == BASE
    assert group.add(BASE, BASE) == group.multiply_base(2) == group.multiply(2, BASE)
    assert group.multiply_base(-1) == group.multiply_base(ORDER - 1)


def test_both_sides_agree() -> None:
    ada, bob = group.draw_scalar(), group.draw_scalar()
    assert group.multiply(ada, group.multiply_base(bob)) == group.multiply(bob, group.multiply_base(ada))
    assert ada != bob and 0 < ada < ORDER


@pytest.mark.parametrize("point", [*map(bytes.fromhex, SMALL), b"\xff" * 32])
def test_small_and_malformed_points_are_refused(point: bytes) -> None:
    for use in (lambda: group.require_point(point), lambda: group.multiply(5, point)):
        with pytest.raises(ProtocolError, match="point of the group"):
            use()


def test_a_point_of_the_whole_curve_that_is_not_in_the_group_is_refused() -> None:
    """A point of the group plus one of order 2: agreements with it would tell the secret's last bit."""
    mixed = group.add(BASE, bytes.fromhex(SMALL[2]))
    with pytest.raises(ProtocolError, match="point of the group"):
        group.require_point(mixed)


def test_an_ordinary_public_key_is_a_point() -> None:
    group.require_point(Ed25519PrivateKey.generate().public_key().public_bytes_raw())


def test_zero_has_no_point() -> None:
    for scalar in (0, ORDER):
        with pytest.raises(ProtocolError, match="other than 0"):
            group.multiply_base(scalar)


SCALARS = (
    1,
    2,
    8,
    ORDER - 1,
    ORDER - 8,
    8 * (1 << 251),
    8 * (1 << 251) - 8,
    8 * (1 << 252),
    *(3**n for n in range(150, 158)),
)


@pytest.mark.parametrize("scalar", SCALARS)
def test_an_agreement_is_the_u_of_the_product_as_libsodium_has_both(scalar: int) -> None:
    """Whether X25519's form of the scalar, or that of its negative, or neither, is a number from 2^254 on."""
    points = [group.multiply_base(other) for other in (1, 5, ORDER - 7)]
    expected = [crypto_sign_ed25519_pk_to_curve25519(group.multiply(scalar, point)) for point in points]
    assert group.agree(scalar, points) == expected == group.convert_points([group.multiply(scalar, p) for p in points])


@given(st.integers(1, ORDER - 1), st.integers(1, ORDER - 1))
@settings(max_examples=50, deadline=None)
def test_both_sides_agree_on_one_u(ada: int, bob: int) -> None:
    assert group.agree(ada, [group.multiply_base(bob)]) == group.agree(bob, [group.multiply_base(ada)])


@pytest.mark.parametrize("point", SMALL)
def test_points_of_small_order_and_a_scalar_of_0_give_no_agreement(point: str) -> None:
    with pytest.raises(ProtocolError, match="got another value"):
        group.agree(5, [BASE, bytes.fromhex(point)])
    with pytest.raises(ProtocolError):
        group.agree(ORDER, [BASE])


def test_a_point_with_a_part_of_small_order_tells_nothing_of_the_scalar() -> None:
    """The multiple of it is that of its part in the group alone."""
    mixed = group.add(BASE, bytes.fromhex(SMALL[2]))
    assert group.agree(5, [mixed]) == group.agree(5, [BASE])
