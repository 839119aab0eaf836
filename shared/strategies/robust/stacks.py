"""One tensor of every update, side by side, in pieces that bound what is computed at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shared.method.exchanged import Update
from shared.method.graph import Float64
from shared.method.parameters import Float32

PIECE = 1 << 22  # numbers of all clients together; 32 MiB in float64


def stack_tensor(name: str, updates: Sequence[Update]) -> Float32:
    """That tensor of all updates, in their order, flat: (C, P_name)."""
    return np.stack([np.asarray(update.arrays[name], dtype=np.float32).ravel() for update in updates])


def pieces(stack: Float32) -> Iterator[Float64]:
    """Its columns from left to right, (C, <= PIECE / C) at a time, in float64."""
    width = max(1, PIECE // len(stack))
    for begin in range(0, stack.shape[1], width):
        yield stack[:, begin : begin + width].astype(np.float64)
