"""Named arrays: their parts and their digest. The arithmetic is numpy alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Arrays = Mapping[str, Float32]
BLOCK = 1 << 17  # values that are worked on at a time; a megabyte in float64


@runtime_checkable
class ByPart(Protocol):
    """Arrays on disk, of which a part can be read."""

    def part(self, name: str, begin: int, end: int) -> Float32: ...


def part(arrays: Arrays, name: str, begin: int, end: int) -> Float32:
    """Some values of an array in row order; of one that lies on disk, those alone are read."""
    if isinstance(arrays, ByPart):
        return arrays.part(name, begin, end)
    return np.ravel(arrays[name])[begin:end]


def blocks(size: int, *, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Where parts of about a megabyte begin and end that together are `size` values; each holds a `multiple`."""
    step = max(1, BLOCK // multiple) * multiple
    return ((begin, min(begin + step, size)) for begin in range(0, size, step))


def digest(arrays: Arrays) -> str:
    """sha256 over names, shapes and little-endian bytes in name order: equal digests mean equal parameters."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        value = np.asarray(arrays[name], dtype="<f4", order="C")
        total.update(f"{name}{value.shape}".encode())
        total.update(value.data)
    return total.hexdigest()
