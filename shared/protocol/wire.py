"""Named arrays and scalars <-> safetensors bodies. No pickle, no compression: what is declared is what is sent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from shared.errors import ProtocolError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.exchanged import Parameters, Scalars
from shared.method.parameters import Arrays, Float32
from shared.protocol.bodies import (
    DTYPE,
    VALUE_BYTES,
    body_size,
    head,
    is_body_of,
    metadata_of,
    places,
    read_array,
    scalars_text,
)

MEDIA_TYPE = "application/vnd.safetensors"


def encode(parameters: Parameters) -> bytes:
    """One safetensors body: float32 arrays, and the scalars in its metadata as exact decimal text."""
    arrays = {name: np.asarray(value, dtype=np.float32, order="C") for name, value in sorted(parameters.arrays.items())}
    return save(arrays, metadata={"scalars": scalars_text(parameters.scalars)})


class StoredArrays(Mapping[str, Float32]):
    """The arrays of a safetensors file, each read when asked for: a whole update never lies in memory."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._names = path, tuple(places(path))

    def __getitem__(self, name: str) -> Float32:
        return read_array(self._path, *places(self._path)[name])

    def part(self, name: str, begin: int, end: int) -> Float32:
        """Some of its values, in row order, and nothing else of the file."""
        start, shape = places(self._path)[name]
        end = min(end, math.prod(shape))
        return read_array(self._path, start + VALUE_BYTES * begin, (max(0, end - begin),))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def open_parameters(path: str | Path) -> tuple[tuple[TensorSpec, ...], Parameters]:
    """What a spooled body holds: the specification it claims, and its content, lazily. ProtocolError if malformed."""
    try:
        with safe_open(path, framework="numpy") as body:
            specification = tuple(_specification(name, body.get_slice(name)) for name in sorted(body.keys()))
            scalars = _scalars(body.metadata() or {})
    except SafetensorError as error:
        raise ProtocolError(f"expected a safetensors body, got: {error}") from None
    return specification, Parameters(StoredArrays(path), scalars)


def _specification(name: str, piece: object) -> TensorSpec:
    dtype, shape = piece.get_dtype(), tuple(piece.get_shape())  # type: ignore[attr-defined]
    if dtype != DTYPE:
        raise ProtocolError(f"expected dtype {DTYPE}, got {dtype} for {name!r}")
    return TensorSpec.model_construct(name=name, dtype="F32", shape=shape)


def _scalars(metadata: Mapping[str, str]) -> Scalars:
    if set(metadata) - {"scalars"}:
        raise ProtocolError(f"expected the metadata field 'scalars' alone, got {sorted(metadata)}")
    try:
        values = json.loads(metadata.get("scalars", "{}"))
    except (ValueError, RecursionError):
        raise ProtocolError("expected the scalars as JSON, got text that is not") from None
    if not isinstance(values, dict) or not all(type(v) is float for v in values.values()):
        raise ProtocolError("expected the scalars as an object of JSON numbers with a fraction")
    return values


def check(declaration: Declaration, specification: tuple[TensorSpec, ...], content: Parameters) -> None:
    """Hold content against its declaration: the very tensors, at most the scalars, all finite. Else ProtocolError."""
    declared = {spec.name: spec for spec in declaration.uploaded}
    came = {spec.name: spec for spec in specification}
    if set(declared) != set(came):
        raise ProtocolError(f"expected tensors {sorted(declared)}, got {sorted(came)}")
    for name, spec in declared.items():
        if spec.shape != came[name].shape:
            raise ProtocolError(f"expected shape {list(spec.shape)}, got {list(came[name].shape)} for {name!r}")
    if set(content.scalars) - set(declaration.scalars):
        raise ProtocolError(f"expected at most scalars {list(declaration.scalars)}, got {sorted(content.scalars)}")
    _check_finite(content.arrays, content.scalars)


def _check_finite(arrays: Arrays, scalars: Scalars) -> None:
    for name, value in scalars.items():
        if not math.isfinite(value):
            raise ProtocolError(f"expected a finite number, got {value} for {name!r}")
    for name in arrays:
        if not np.isfinite(arrays[name]).all():
            raise ProtocolError(f"expected finite values, got NaN or infinity in {name!r}")


def require_canonical(path: str | Path, declaration: Declaration, scalars: Scalars) -> None:
    """ProtocolError unless a spooled body is, to the byte but for its tensors' values, what `encode` writes.

    A reader of safetensors passes over fields, repetitions and spaces in a header that could carry anything.
    """
    shapes = {spec.name: spec.shape for spec in declaration.uploaded}
    if not is_body_of(path, head(shapes, scalars), body_size(shapes, scalars)):
        raise ProtocolError("expected the update in the one form that a client writes, got another form of it")


def decode(body: bytes) -> tuple[tuple[TensorSpec, ...], Parameters]:
    """What a body in memory holds: the specification it claims, and its content. ProtocolError if malformed."""
    try:
        arrays = load(body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ProtocolError(f"expected a safetensors body, got: {error}") from None
    specification = tuple(TensorSpec.model_construct(name=n, dtype="F32", shape=v.shape) for n, v in arrays.items())
    if wrong := sorted(name for name, value in arrays.items() if value.dtype != np.float32):
        raise ProtocolError(f"expected dtype {DTYPE} everywhere, got another for {wrong}")
    return tuple(sorted(specification, key=lambda spec: spec.name)), Parameters(arrays, _scalars(metadata_of(body)))
