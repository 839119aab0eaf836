"""Masked vectors <-> safetensors bodies: U64 tensors, and beside them one header in the metadata.

A body has one form alone: whoever reads it holds it, to the byte, against what `encode_masked` would have written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.protocol.bodies import BYTES_OF, MASKED_DTYPE, head_of, is_body_of, metadata_of
from shared.protocol.secure import vector
from shared.protocol.secure.fixed_point import Ring
from shared.protocol.secure.messages import MaskedHeader, visible_scalars
from shared.protocol.secure.vector import MaskedUpdate

FIELD = "masked"  # the one field of the metadata


def encode_masked(update: MaskedUpdate) -> bytes:
    """One safetensors body: the masked tensors by name, and the header as the JSON that pydantic writes."""
    arrays = {name: np.asarray(value, dtype="<u8", order="C") for name, value in sorted(update.vector.items())}
    return save(arrays, metadata={FIELD: update.header.model_dump_json()})


def decode_masked(declaration: Declaration, body: bytes) -> MaskedUpdate:
    """What a body in memory holds, if it is a masked vector of this declaration in the one form; else ProtocolError."""
    try:
        arrays = load(body)
        fields = metadata_of(body)
    except (SafetensorError, ValueError, KeyError, RecursionError):
        raise ProtocolError("expected a safetensors body, got another") from None
    found = MaskedUpdate(_header(fields), arrays)
    _require(declaration, found)
    if encode_masked(found) != body:
        raise ProtocolError("expected the masked vector in the one form that a client writes, got another form of it")
    return found


def open_masked(declaration: Declaration, path: str | Path) -> MaskedUpdate:
    """The same of a spooled body, whose tensors stay on the disk until they are asked for."""
    try:
        with safe_open(path, framework="numpy") as body:
            names, fields = tuple(sorted(body.keys())), body.metadata() or {}
    except SafetensorError:
        raise ProtocolError("expected a safetensors body, got another") from None
    header = _header(fields)
    if not is_body_of(path, _front(declaration, header), size(declaration, header)):
        raise ProtocolError("expected the masked vector in the one form that a client writes, got another form of it")
    found = MaskedUpdate(header, StoredVector(path, names))
    _require(declaration, found)
    return found


def size(declaration: Declaration, header: MaskedHeader) -> int:
    """Bytes of a body with such a header."""
    numbers = sum(math.prod(shape) for shape in vector.layout(declaration).values())
    return len(_front(declaration, header)) + BYTES_OF[MASKED_DTYPE] * numbers


def _front(declaration: Declaration, header: MaskedHeader) -> bytes:
    """All of such a body before its numbers."""
    tensors = {name: (MASKED_DTYPE, shape) for name, shape in vector.layout(declaration).items()}
    return head_of(tensors, {FIELD: header.model_dump_json()})


class StoredVector(Mapping[str, Ring]):
    """The tensors of a masked body on the disk, each read when asked for."""

    def __init__(self, path: str | Path, names: tuple[str, ...]) -> None:
        self._path, self._names = path, names

    def __getitem__(self, name: str) -> Ring:
        with safe_open(self._path, framework="numpy") as body:
            value: Ring = body.get_tensor(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _header(fields: Mapping[str, str]) -> MaskedHeader:
    try:
        return MaskedHeader.model_validate_json(fields[FIELD] if set(fields) == {FIELD} else "")
    except ValidationError:
        raise ProtocolError(f"expected the metadata field {FIELD!r} alone with a masked vector's header") from None


def _require(declaration: Declaration, found: MaskedUpdate) -> None:
    """With no other open scalars than agreed, of the declared pieces, and truly masked."""
    if not set(found.header.scalars) <= visible_scalars(declaration):
        raise ProtocolError("expected a masked vector with visible scalars at most beside it, got others")
    vector.require_same(declaration, found.vector, found.header.digest)
    if open_to_view := [name for name, value in found.vector.items() if vector.lies_open(value)]:
        raise ProtocolError(f"expected masked numbers, {len(open_to_view)} tensors are not masked")
