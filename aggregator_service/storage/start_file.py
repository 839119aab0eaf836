"""A safetensors file of named tensors with which every run of a federation starts, in place of drawn ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import TensorSpec
from shared.method.parameters import Float32
from shared.protocol.wire import decode


@dataclass(frozen=True)
class StartFile:
    """digest: sha256 of the file, which a run carries. arrays: its tensors by name."""

    digest: str
    arrays: Mapping[str, Float32]


def read_start(path: Path, declared: Sequence[TensorSpec]) -> StartFile:
    """SettingsError for a file that cannot be read, or that holds others than declared tensors, another shape, or a
    value that is not finite."""
    try:
        content = path.read_bytes()
        _, parameters = decode(content)
    except (OSError, ProtocolError) as error:
        raise SettingsError(f"start: expected a safetensors file of float32 tensors at {path}, got: {error}") from None
    shapes = {spec.name: spec.shape for spec in declared}
    for name, value in parameters.arrays.items():
        if shapes.get(name) != value.shape:
            expected = list(shapes[name]) if name in shapes else f"one of {sorted(shapes)}"
            raise SettingsError(f"start: expected {expected}, got {name!r} of shape {list(value.shape)}")
        if not np.isfinite(value).all():
            raise SettingsError(f"start: expected finite values in {name!r}, got NaN or infinity")
    return StartFile(hashlib.sha256(content).hexdigest(), parameters.arrays)
