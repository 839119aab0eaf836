"""Group of keys, shares and commitments: the prime-order subgroup of edwards25519.

Scalars are integers modulo ORDER; points are the 32 bytes of RFC 8032. libsodium does the arithmetic in constant
time. Two keys agree by X25519 on the same curve in its other form (RFC 7748, 4.1): 2.4 times as fast.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import accumulate

from nacl import bindings
from nacl.exceptions import RuntimeError as SodiumError

from shared.errors import ProtocolError

ORDER = 2**252 + 27742317777372353535851937790883648493
BYTES = 32  # length of an encoded scalar, and of a point
FIELD = 2**255 - 19  # prime of the coordinates
EIGHTH = pow(8, -1, ORDER)


def draw_scalar() -> int:
    """Draws a secret scalar from 1 to ORDER - 1 from the operating system."""
    return 1 + secrets.randbelow(ORDER - 1)


def encode_scalar(scalar: int) -> str:
    """Writes a scalar as 32 bytes in hexadecimal, most significant first."""
    return scalar.to_bytes(BYTES).hex()


def multiply_base(scalar: int) -> bytes:
    """Computes scalar G.

    Raises ProtocolError for a multiple of ORDER: the neutral element is no public key.
    """
    try:
        return bindings.crypto_scalarmult_ed25519_base_noclamp(_to_sodium(scalar))
    except SodiumError:
        raise ProtocolError("expected a scalar other than 0, got 0") from None


def multiply(scalar: int, point: bytes) -> bytes:
    """Computes scalar P.

    Raises ProtocolError unless P is a point of the group and the scalar not a multiple of ORDER.
    """
    try:
        return bindings.crypto_scalarmult_ed25519_noclamp(_to_sodium(scalar), point)
    except SodiumError:
        raise ProtocolError("expected a point of the group of prime order, got another value") from None


def agree(scalar: int, points: Sequence[bytes]) -> list[bytes]:
    """Computes the agreement with each point P: the u of scalar P.

    Raises ProtocolError for a scalar of 0, and for a value that cannot be an agreement with a point of the group. A
    point outside the group tells nothing of the scalar: X25519's is a multiple of 8, and the curve's twist is as safe.
    """
    multiple = scalar * EIGHTH % ORDER  # X25519 multiplies by 8 m, with m from 2^251 on; -P has the u of P
    multiple = multiple if multiple >> 251 else ORDER - multiple
    if multiple >> 252 or not multiple >> 251:  # 0, or once in 2^126 scalars
        return convert_points([multiply(scalar, point) for point in points])
    number = (8 * multiple).to_bytes(BYTES, "little")
    try:
        return [bindings.crypto_scalarmult(number, u) for u in convert_points(points)]
    except SodiumError:
        raise ProtocolError("expected a point of the group of prime order, got another value") from None


def convert_points(points: Sequence[bytes]) -> list[bytes]:
    """Computes the u of each point, by one inversion for all of them.

    u = (1 + y) / (1 - y): RFC 7748, 4.1.
    """
    heights = [int.from_bytes(point, "little") & (1 << 255) - 1 for point in points]
    if not all(1 < y < FIELD for y in heights):
        raise ProtocolError("expected a point of the group of prime order, got another value")
    products = list(accumulate((1 - y for y in heights), lambda left, one: left * one % FIELD, initial=1))
    inverse, found = pow(products.pop(), -1, FIELD), list[bytes]()
    for y, before in zip(reversed(heights), reversed(products), strict=True):
        found.append(((1 + y) * inverse * before % FIELD).to_bytes(BYTES, "little"))
        inverse = inverse * (1 - y) % FIELD
    return found[::-1]


def add(first: bytes, second: bytes) -> bytes:
    """Computes P + Q of points that were checked or computed here."""
    return bindings.crypto_core_ed25519_add(first, second)


def require_point(point: bytes) -> None:
    """Raises ProtocolError unless the bytes are a point other than the neutral element."""
    if not bindings.crypto_core_ed25519_is_valid_point(point):
        raise ProtocolError("expected a point of the group of prime order, got another value")


def _to_sodium(scalar: int) -> bytes:
    return (scalar % ORDER).to_bytes(BYTES, "little")
