"""What a client hides: declared tensors and hidden scalars -> named ring tensors, and their sum -> the mean."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from shared.errors import PrivacyError, ProtocolError
from shared.method.declaration import Declaration
from shared.method.exchanged import Parameters
from shared.protocol.privacy import require_declared
from shared.protocol.secure import fixed_point
from shared.protocol.secure.fixed_point import Ring
from shared.protocol.secure.messages import MaskedHeader, hidden_scalars

Vector = Mapping[str, Ring]
SCALARS = "#scalars"  # no declared tensor can have this name
LEAST_TOLD = 16  # numbers by which masked and unmasked can be told apart


class MaskedUpdate(NamedTuple):
    """What leaves in phase `masked`: a header, and tensors that look like noise."""

    header: MaskedHeader
    vector: Vector


def layout(declaration: Declaration) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every piece, in the order in which pieces are numbered: tensors by name, then the scalars."""
    tensors = {spec.name: spec.shape for spec in sorted(declaration.uploaded, key=lambda spec: spec.name)}
    return tensors | ({SCALARS: (len(hidden),)} if (hidden := hidden_scalars(declaration)) else {})


def encode(declaration: Declaration, content: Parameters) -> dict[str, Ring]:
    """The whole vector in fixed point. PrivacyError if it is not what was declared, ProtocolError if out of range."""
    require_declared(declaration, content)
    hidden = hidden_scalars(declaration)
    if missing := sorted(set(hidden) - set(content.scalars)):
        raise PrivacyError(f"expected a value for every hidden scalar, none came for {missing}")
    pieces = {name: fixed_point.encode(content.arrays[name], name) for name in layout(declaration) if name != SCALARS}
    values = np.array([content.scalars[name] for name in hidden], dtype=np.float64)
    return pieces | ({SCALARS: fixed_point.encode(values, SCALARS)} if hidden else {})


def digest(vector: Vector) -> str:
    """sha256 over names, shapes and little-endian bytes in name order."""
    total = hashlib.sha256()
    for name in sorted(vector):
        value = np.asarray(vector[name], dtype="<u8", order="C")
        total.update(f"{name}{value.shape}".encode())
        total.update(value.data)
    return total.hexdigest()


def require_same(declaration: Declaration, vector: Vector, expected: str) -> None:
    """ProtocolError unless a vector has the declared pieces, types and shapes, and this digest."""
    pieces = layout(declaration)
    if set(vector) != set(pieces):
        raise ProtocolError(f"expected masked tensors {sorted(pieces)}, got {len(vector)} of other names")
    for name, shape in pieces.items():
        if (got := vector[name]).dtype != np.uint64 or got.shape != shape:
            raise ProtocolError(f"expected uint64 {list(shape)}, got {got.dtype} {list(got.shape)} for {name!r}")
    if (came := digest(vector)) != expected:
        raise ProtocolError(f"expected a masked vector of digest {expected}, got {came}")


def lies_open(values: Ring) -> bool:
    """Are these numbers that nobody has masked? A masked one is that small once in 2,048 times, so of sixteen that
    half are happens less than once in 2^70 times; of fewer nothing can be said."""
    numerators = np.abs(values.view(np.int64).astype(np.float64))
    within = np.count_nonzero(numerators <= fixed_point.LIMIT / fixed_point.STEP)
    return bool(values.size >= LEAST_TOLD and 2 * within > values.size)


def mean(declaration: Declaration, totals: Iterable[tuple[str, Ring]], count: int) -> Parameters:
    """The pieces' unmasked sums over `count` clients, one after the other -> mean arrays (float32) and scalars."""
    arrays, scalars = {}, {}
    for name, total in totals:
        value = fixed_point.mean(total, count)
        if name == SCALARS:
            scalars = dict(zip(hidden_scalars(declaration), value.tolist(), strict=True))
        else:
            arrays[name] = value.astype(np.float32)
    return Parameters(arrays, scalars)
