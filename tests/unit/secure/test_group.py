"""The group's arithmetic is that of RFC 8032, and nothing else than its points is taken for one."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
