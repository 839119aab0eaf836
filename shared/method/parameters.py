"""Tensor specifications -> seeded initial values; parts and the digest of named arrays.

The arithmetic is numpy alone, so that the aggregator can hand out the start without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shared.method.declaration import TensorSpec
from shared.method.exchange import ITEM_TABLE

Float32 = NDArray[np.float32]
Arrays = Mapping[str, Float32]
BLOCK = 1 << 17  # values that are worked on at a time; a megabyte in float64
TABLE_DEVIATION = 0.1  # of an item table's normal start


def initial_parameters(specification: tuple[TensorSpec, ...], seed: int, *, exact: bool) -> dict[str, Float32]:
    """Xavier-uniform weights, zero biases and normal item tables, the same on every machine for the same seed.

    `exact` zeroes the two output layers, so that a model starts exactly at its base path.
    """
    generator = np.random.default_rng(seed)
    values = {spec.name: _drawn(spec, generator) for spec in specification}
    return {name: np.zeros_like(v) if exact and ".output." in name else v for name, v in values.items()}


def _drawn(spec: TensorSpec, generator: np.random.Generator) -> Float32:
    values = np.zeros(spec.shape, dtype=np.float32)
    if spec.name != ITEM_TABLE and len(spec.shape) == 1:
        return values
    limit, flat = np.sqrt(6.0 / sum(spec.shape)), values.reshape(-1)
    for begin, end in blocks(flat.size):  # drawn in float64, block by block: the same numbers with less memory
        if spec.name == ITEM_TABLE:  # Xavier would make the rows of a long catalogue so small that nothing is learnt
            flat[begin:end] = generator.normal(0.0, TABLE_DEVIATION, end - begin)
        else:
            flat[begin:end] = generator.uniform(-limit, limit, end - begin)
    return values


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
