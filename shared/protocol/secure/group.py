"""Group of keys, shares and commitments: the prime-order subgroup of edwards25519.

Scalars are integers modulo ORDER; points are the 32 bytes of RFC 8032. libsodium does the arithmetic in constant
time.
"""

from __future__ import annotations

import secrets

from nacl import bindings
from nacl.exceptions import RuntimeError as SodiumError

from shared.errors import ProtocolError

ORDER = 2**252 + 27742317777372353535851937790883648493
BYTES = 32  # length of an encoded scalar, and of a point


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


def add(first: bytes, second: bytes) -> bytes:
    """Computes P + Q of points that were checked or computed here."""
    return bindings.crypto_core_ed25519_add(first, second)


def require_point(point: bytes) -> None:
    """Raises ProtocolError unless the bytes are a point other than the neutral element."""
    if not bindings.crypto_core_ed25519_is_valid_point(point):
        raise ProtocolError("expected a point of the group of prime order, got another value")


def _to_sodium(scalar: int) -> bytes:
    return (scalar % ORDER).to_bytes(BYTES, "little")
