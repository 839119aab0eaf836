"""Shamir's secret sharing: 32 bytes -> shares, of which any `threshold` restore them and fewer say nothing.

A share is the value at x = 1, 2, ... of a random polynomial modulo PRIME whose constant is the secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from shared.errors import ProtocolError

SECRET_BYTES = 32
SHARE_BYTES = 33
PRIME = 2**256 + 297  # the least prime above 2^256, so that every 32 bytes are an element of the field


def split(secret: bytes, count: int, threshold: int) -> list[int]:
    """The shares for x = 1 to `count`; the other coefficients are fresh from the operating system."""
    if len(secret) != SECRET_BYTES:
        raise ProtocolError(f"expected a secret of {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= count:
        raise ProtocolError(f"expected a threshold from 1 to {count} shares, got {threshold}")
    drawn = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return [_value([int.from_bytes(secret), *drawn], x) for x in range(1, count + 1)]


def _value(coefficients: Sequence[int], x: int) -> int:
    """The polynomial at x by Horner's rule; `coefficients` begin with the constant."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def weights(points: Sequence[int]) -> dict[int, int]:
    """Lagrange's weight of each x, for the value at 0: a step of its own, as the same points serve many secrets.

    ProtocolError unless the points are different and from 1 to PRIME - 1.
    """
    if len(set(points)) != len(points) or not all(0 < x < PRIME for x in points):
        raise ProtocolError(f"expected shares of different holders, got {len(points)} of {len(set(points))}")
    return {x: _weight(x, points) for x in points}


def _weight(x: int, points: Sequence[int]) -> int:
    above = below = 1
    for other in points:
        if other != x:
            above = above * other % PRIME
            below = below * (other - x) % PRIME
    return above * pow(below, -1, PRIME) % PRIME


def restore(shares: Mapping[int, int], weights: Mapping[int, int]) -> bytes:
    """The secret of at least `threshold` shares by x, with the weights of those very points.

    Fewer or wrong shares give other bytes, or ProtocolError where no secret of 32 bytes fits. Who needs to know must
    hold the result against what the secret's owner has published.
    """
    value = sum(shares[x] * weight for x, weight in weights.items()) % PRIME
    if value >> 8 * SECRET_BYTES:
        raise ProtocolError(f"expected shares of one secret of {SECRET_BYTES} bytes, got shares that fit none")
    return value.to_bytes(SECRET_BYTES)
