"""Named arrays and scalars <-> safetensors bodies. No pickle, no compression: what is declared is what is sent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast, get_args

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from shared.errors import ProtocolError
from shared.method.declaration import Declaration, DType, TensorSpec
from shared.method.exchanged import Parameters, Scalars
from shared.method.parameters import STORED, Array, Arrays, Form, form_of
from shared.protocol.bodies import (
    body_size,
    head,
    is_body_of,
    metadata_of,
    places,
    read_array,
    scalars_text,
)

MEDIA_TYPE = "application/vnd.safetensors"
DTYPES = get_args(DType)


def encode(parameters: Parameters) -> bytes:
    """One safetensors body: the arrays, and the scalars in its metadata as exact decimal text."""
    arrays = {name: as_stored(value) for name, value in sorted(parameters.arrays.items())}
    return save(arrays, metadata={"scalars": scalars_text(parameters.scalars)})


def as_stored(value: Array) -> Array:
    """An array in the type and the order of memory in which a body has it."""
    return np.asarray(value, dtype=STORED[form_of(value).dtype], order="C")


class StoredArrays(Mapping[str, Array]):
    """The arrays of a safetensors file, each read when asked for: a whole update never lies in memory."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._names = path, dict.fromkeys(places(path))

    def __getitem__(self, name: str) -> Array:
        return read_array(self._path, places(self._path)[name])

    def form(self, name: str) -> Form:
        """What its header says of it."""
        return places(self._path)[name].form

    def part(self, name: str, begin: int, end: int) -> Array:
        """Some of its values, in row order, and nothing else of the file."""
        return read_array(self._path, places(self._path)[name].part(begin, end))

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the array
        return name in self._names

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
    return _claimed(name, piece.get_dtype(), tuple(piece.get_shape()))  # type: ignore[attr-defined]


def _claimed(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """As a body says it, whatever the name and the shape are."""
    if dtype not in DTYPES:
        raise ProtocolError(f"expected dtype {' or '.join(DTYPES)}, got {dtype} for {name!r}")
    return TensorSpec.model_construct(name=name, dtype=cast(DType, dtype), shape=shape)


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
    """Hold content against its declaration: the very tensors, at most the scalars, all finite. Else ProtocolError.

    Integers are not read: whatever their bytes are, each is a number modulo 2^32.
    """
    declared = {spec.name: spec for spec in declaration.uploaded}
    came = {spec.name: spec for spec in specification}
    if set(declared) != set(came):
        raise ProtocolError(f"expected tensors {sorted(declared)}, got {sorted(came)}")
    for name, spec in declared.items():
        if spec.shape != came[name].shape:
            raise ProtocolError(f"expected shape {list(spec.shape)}, got {list(came[name].shape)} for {name!r}")
        if spec.dtype != came[name].dtype:
            raise ProtocolError(f"expected dtype {spec.dtype}, got {came[name].dtype} for {name!r}")
    if set(content.scalars) - set(declaration.scalars):
        raise ProtocolError(f"expected at most scalars {list(declaration.scalars)}, got {sorted(content.scalars)}")
    _check_finite([name for name, spec in declared.items() if spec.dtype == "F32"], content.arrays, content.scalars)


def _check_finite(names: Iterable[str], arrays: Arrays, scalars: Scalars) -> None:
    for name, value in scalars.items():
        if not math.isfinite(value):
            raise ProtocolError(f"expected a finite number, got {value} for {name!r}")
    for name in names:
        if not np.isfinite(arrays[name]).all():
            raise ProtocolError(f"expected finite values, got NaN or infinity in {name!r}")


def require_canonical(path: str | Path, declaration: Declaration, scalars: Scalars) -> None:
    """ProtocolError unless a spooled body is, to the byte but for its tensors' values, what `encode` writes.

    A reader of safetensors passes over fields, repetitions and spaces in a header that could carry anything.
    """
    forms = {spec.name: spec.form for spec in declaration.uploaded}
    if not is_body_of(path, head(forms, scalars), body_size(forms, scalars)):
        raise ProtocolError("expected the update in the one form that a client writes, got another form of it")


def decode(body: bytes) -> tuple[tuple[TensorSpec, ...], Parameters]:
    """What a body in memory holds: the specification it claims, and its content. ProtocolError if malformed."""
    try:
        arrays = load(body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ProtocolError(f"expected a safetensors body, got: {error}") from None
    if wrong := sorted(name for name, value in arrays.items() if value.dtype not in (np.float32, np.uint32)):
        raise ProtocolError(f"expected dtype {' or '.join(DTYPES)} everywhere, got another for {wrong}")
    specification = tuple(_claimed(name, *form_of(arrays[name])) for name in sorted(arrays))
    return specification, Parameters(arrays, _scalars(metadata_of(body)))
