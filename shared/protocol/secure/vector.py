"""What a client hides: declared tensors and hidden scalars -> named ring tensors, and their sum -> the mean.

A float32 tensor and the scalars are in fixed point modulo 2^64. A U32 tensor is in the ring modulo 2^32 as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from shared.errors import PrivacyError, ProtocolError
from shared.method.declaration import Declaration
from shared.method.exchanged import Parameters
from shared.method.parameters import STORED, Array, Arrays, Form, blocks, form, part, stored_parts
from shared.protocol.privacy import require_declared
from shared.protocol.secure import fixed_point
from shared.protocol.secure.messages import MaskedHeader, hidden_scalars

Vector = Arrays  # of uint64, or of uint32
RING = "U64"  # of what is in fixed point
SCALARS = "#scalars"  # no declared tensor can have this name
LEAST_TOLD = 16  # numbers by which masked and unmasked can be told apart
SMALL = {"U64": (np.int64, fixed_point.LIMIT / fixed_point.STEP), "U32": (np.int32, 2.0**20)}
"""Type of a ring tensor -> its signed type, and the size up to which a number is small: one in 2,048 is."""


class MaskedUpdate(NamedTuple):
    """What leaves in phase `masked`: a header, and tensors that look like noise."""

    header: MaskedHeader
    vector: Vector


def layout(declaration: Declaration) -> dict[str, Form]:
    """Name -> form of every piece, in the order in which pieces are numbered: tensors by name, then the scalars."""
    specs = sorted(declaration.uploaded, key=lambda spec: spec.name)
    tensors = {spec.name: Form("U32" if spec.dtype == "U32" else RING, spec.shape) for spec in specs}
    return tensors | ({SCALARS: Form(RING, (len(hidden),))} if (hidden := hidden_scalars(declaration)) else {})


def encode(declaration: Declaration, content: Parameters) -> dict[str, Array]:
    """The whole vector in its rings. PrivacyError if it is not what was declared, ProtocolError if out of range."""
    require_declared(declaration, content)
    hidden = hidden_scalars(declaration)
    if missing := sorted(set(hidden) - set(content.scalars)):
        raise PrivacyError(f"expected a value for every hidden scalar, none came for {missing}")
    pieces = {n: _encode(form, content.arrays[n], n) for n, form in layout(declaration).items() if n != SCALARS}
    values = np.array([content.scalars[name] for name in hidden], dtype=np.float64)
    return pieces | ({SCALARS: fixed_point.encode(values, SCALARS)} if hidden else {})


def _encode(expected: Form, value: Array, name: str) -> Array:
    return fixed_point.encode(value, name) if expected.dtype == RING else np.asarray(value)


def digest(vector: Vector) -> str:
    """sha256 over names, shapes and little-endian bytes in name order."""
    total = hashlib.sha256()
    for name in sorted(vector):
        kind = form(vector, name)
        total.update(f"{name}{kind.shape}".encode())
        for stored in stored_parts(vector, name, blocks(kind.size)):
            total.update(stored.data)
    return total.hexdigest()


def require_same(declaration: Declaration, vector: Vector, expected: str) -> None:
    """ProtocolError unless a vector has the declared pieces, types and shapes, and this digest."""
    pieces = layout(declaration)
    if set(vector) != set(pieces):
        raise ProtocolError(f"expected masked tensors {sorted(pieces)}, got {len(vector)} of other names")
    for name, piece in pieces.items():
        if form(vector, name) != piece:
            wanted, got = np.dtype(STORED[piece.dtype]), vector[name]
            raise ProtocolError(
                f"expected {wanted} {list(piece.shape)}, got {got.dtype} {list(got.shape)} for {name!r}"
            )
    if (came := digest(vector)) != expected:
        raise ProtocolError(f"expected a masked vector of digest {expected}, got {came}")


def lies_open(vector: Vector, name: str) -> bool:
    """Are these numbers that nobody has masked: more than half of them small?

    Small is in fixed point whatever can be encoded, up to 2^52 of 2^64 numbers; modulo 2^32 what is at most 2^20 in
    size in two's complement, so a count up to a million, or up to 16 in multiples of 2^-16. Either way a masked number
    is small once in 2,048 times, so of sixteen that half are happens less than once in 2^70 times, and of more numbers
    less often: of n less than once in 2^(4.5 n) times. Of fewer nothing can be said.
    """
    kind = form(vector, name)
    small = sum(_count_small(part(vector, name, *span), kind.dtype) for span in blocks(kind.size))
    return kind.size >= LEAST_TOLD and 2 * small > kind.size


def _count_small(values: Array, dtype: str) -> int:
    signed, limit = SMALL[dtype]
    return int(np.count_nonzero(np.abs(values.view(signed).astype(np.float64)) <= limit))


def mean(declaration: Declaration, totals: Iterable[tuple[str, Array]], count: int) -> Parameters:
    """The pieces' unmasked sums over `count` clients, one after the other -> mean arrays (float32) and scalars.

    The sum of a U32 tensor is handed on as it is.
    """
    arrays: dict[str, Array] = {}
    scalars: dict[str, float] = {}
    for name, total in totals:
        if name == SCALARS:
            scalars = dict(zip(hidden_scalars(declaration), fixed_point.mean(total, count).tolist(), strict=True))
        elif total.dtype == np.uint32:
            arrays[name] = total
        else:
            arrays[name] = fixed_point.mean(total, count).astype(np.float32)
    return Parameters(arrays, scalars)
