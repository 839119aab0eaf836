"""Named arrays and scalars: parameters, a client's update, and the state of a run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
UInt32 = NDArray[np.uint32]
Array = NDArray[Any]  # float32, or uint32 where the tensor is declared so
Arrays = Mapping[str, Array]
BLOCK = 1 << 17  # values that are worked on at a time; a megabyte in float64
STORED = {"U64": "<u8", "F32": "<f4", "U32": "<u4"}
"""Numpy's notation of each type of a stored tensor, in the order in which safetensors stores types."""


class Form(NamedTuple):
    """Type and shape of a tensor as it is stored and sent."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return self.size * np.dtype(STORED[self.dtype]).itemsize


class StoredMapping(Protocol):
    """Arrays on disk, of which the form and a part can be read."""

    def form(self, name: str) -> Form: ...
    def part(self, name: str, begin: int, end: int) -> Array: ...


def is_stored(arrays: Arrays) -> TypeGuard[StoredMapping]:
    """Finds out if arrays are on disk, faster than a check of the protocol."""
    return hasattr(arrays, "form") and hasattr(arrays, "part")


def array_form(arrays: Arrays, name: str) -> Form:
    """Returns type and shape of an array, without reading one on disk."""
    if is_stored(arrays):
        return arrays.form(name)
    return memory_form(arrays[name])


def memory_form(value: Array) -> Form:
    """Returns the form in which an array in memory is stored.

    Unsigned integers of 4 or 8 bytes stay as they are, all else is float32.
    """
    dtype = np.asarray(value).dtype
    known = {("u", 4): "U32", ("u", 8): "U64"}
    return Form(known.get((dtype.kind, dtype.itemsize), "F32"), np.shape(value))


Spans = Sequence[tuple[str, int, int]]
"""Values of arrays of one type, in row order: name, first, last + 1."""


def array_parts(arrays: Arrays, spans: Spans) -> Array:
    """Returns values of several arrays of one type, joined, reading only these."""
    if (read := getattr(arrays, "parts", None)) is not None:
        found: Array = read(spans)
        return found
    return np.concatenate([array_part(arrays, *span) for span in spans])


def array_part(arrays: Arrays, name: str, begin: int, end: int) -> Array:
    """Returns some values of an array in row order, reading only these."""
    if is_stored(arrays):
        return arrays.part(name, begin, end)
    return np.ravel(arrays[name])[begin:end]


def blocks(size: int, *, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Splits `size` values into spans of about a megabyte, multiples of `multiple`."""
    step = max(1, BLOCK // multiple) * multiple
    return ((begin, min(begin + step, size)) for begin in range(0, size, step))


def digest_arrays(arrays: Arrays) -> str:
    """Computes the sha256 over names, shapes and little-endian bytes in name order.

    Equal digests mean equal parameters. The type stands beside the shape of U32 alone: zeros of both types are the
    same bytes.
    """
    total = hashlib.sha256()
    for name in sorted(arrays):
        dtype, shape = kind = array_form(arrays, name)
        total.update(f"{name}{shape}{dtype if dtype == 'U32' else ''}".encode())
        for stored in stored_parts(arrays, name, blocks(kind.size)):
            total.update(stored.data)
    return total.hexdigest()


def stored_parts(arrays: Arrays, name: str, spans: Iterable[tuple[int, int]]) -> Iterator[Array]:
    """Yields parts of an array as stored; an array on disk is never read whole."""
    dtype = STORED[array_form(arrays, name).dtype]
    source = arrays
    if not is_stored(arrays):
        source = {name: np.ravel(arrays[name])}
    return (np.asarray(array_part(source, name, *span), dtype=dtype) for span in spans)


Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Parameters:
    """Arrays and scalars that are sent, in either direction.

    An array is float32, or uint32 where the tensor is declared as U32. Arrays on disk are a lazy mapping.
    """

    arrays: Arrays
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """Arrays and scalars that one client sent in one round."""

    client: str
    arrays: Arrays
    scalars: Scalars


@dataclass(frozen=True)
class State:
    """State that the aggregator keeps between rounds.

    arrays, scalars: the centre of the clients' updates, or a strategy's step from it; of a U32 tensor the sum modulo
    2^32.
    latest: the last scalars of each enrolled client.
    own: arrays made for one client alone.
    memory: memory of the step, such as an optimiser's moments; clients get only the strategy's broadcasts of it.
    reports: the centre of the tensors that only clients send, for the step; it is not kept.
    """

    arrays: Arrays
    scalars: Scalars = field(default_factory=dict)
    latest: Mapping[str, Scalars] = field(default_factory=dict)
    own: Mapping[str, Arrays] = field(default_factory=dict)
    memory: Arrays = field(default_factory=dict)
    reports: Arrays = field(default_factory=dict)
