"""Method settings -> names, shapes and seeded initial values of what clients exchange: two MLPs, or a table of items.

The arithmetic is numpy alone, so that the aggregator can hand out the start without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shared.errors import SettingsError
from shared.method.declaration import TensorSpec
from shared.method.settings import MethodSettings

Float32 = NDArray[np.float32]
Arrays = Mapping[str, Float32]
ITEM_TABLE = "item.table"
SIDES = ("item", "user")
BLOCK = 1 << 17  # values that are worked on at a time; a megabyte in float64
TABLE_DEVIATION = 0.1  # of an item table's normal start


def mlp_specification(method: MethodSettings) -> tuple[TensorSpec, ...]:
    """Every tensor of the pooling MLP (Eq. 4) and of the predictive MLP (Eq. 5), sorted by name.

    pooling: (L + 1) d -> d -> d on the concatenated layers; predictive: 3 d -> d -> 1 on [u, v, u * v].
    """
    width, layers = method.width, method.layers
    shapes = {
        "pooling.hidden": (width, (layers + 1) * width),
        "pooling.output": (width, width),
        "predictive.hidden": (width, 3 * width),
        "predictive.output": (1, width),
    }
    weights = [TensorSpec(name=f"{name}.weight", shape=shape) for name, shape in shapes.items()]
    biases = [TensorSpec(name=f"{name}.bias", shape=shape[:1]) for name, shape in shapes.items()]
    return tuple(sorted(weights + biases, key=lambda spec: spec.name))


def table_specification(method: MethodSettings) -> tuple[TensorSpec, ...]:
    """One row for each item of the federation's catalogue: what algorithms share whose clients sell the same items."""
    if method.catalogue == 0:
        raise SettingsError("catalogue: expected the size of a shared item catalogue, because items are shared, got 0")
    return (TensorSpec(name=ITEM_TABLE, shape=(method.catalogue, method.width)),)


def attended_specification(method: MethodSettings) -> tuple[TensorSpec, ...]:
    """The item table, and for users and for items the semantic attention q tanh(W z + b) over meta-paths."""
    width = method.width
    shapes = {"bias": (width,), "query": (1, width), "weight": (width, width)}
    attention = (TensorSpec(name=f"attention.{s}.{n}", shape=shape) for s in SIDES for n, shape in shapes.items())
    return (*attention, *table_specification(method))


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
