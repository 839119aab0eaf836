"""A round's updates -> how far each is from where the round began -> the same updates, none much further than the rest.

Shapes: C updates of P numbers each. One tensor of one update lies in memory at a time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.method.exchanged import State, Update
from shared.method.parameters import Arrays, Float32, Form, form, part


def distances(state: State, updates: Sequence[Update]) -> dict[str, float]:
    """|sent - state|_2 over all tensors, by client."""
    # Elsewhere: the distance from what that client received; here: from the state, which all had in common. A client's
    # own past is in what it received (Eq. 14), so that it could walk away step by step, each of them short.
    squares = dict.fromkeys(sorted(update.client for update in updates), 0.0)
    for name in state.arrays:
        before = np.asarray(state.arrays[name], dtype=np.float64)
        for update in updates:
            squares[update.client] += float(np.sum((update.arrays[name] - before) ** 2))
    return {client: math.sqrt(total) for client, total in squares.items()}


def far(found: Mapping[str, float], factor: float) -> dict[str, float]:
    """Who is further than `factor` times the median, and how many times the median that is.

    Nobody where the median is 0: of a round in which most have changed nothing, no length is the usual one.
    """
    median = statistics.median(found.values()) if found else 0.0
    if median == 0.0:
        return {}
    return {client: length / median for client, length in found.items() if length > factor * median}


def clip_updates(state: State, updates: Sequence[Update], factor: float) -> list[Update]:
    """The updates, each whose distance is above `factor` times the median drawn back to it along its own direction.

    Half of the updates and more, and all scalars, stay as they are. With a median of 0 the others become the state.
    """
    found = distances(state, updates)
    most = factor * statistics.median(found.values()) if found else 0.0
    return [_drawn_back(state, update, found[update.client], most) for update in updates]


def _drawn_back(state: State, update: Update, distance: float, most: float) -> Update:
    if distance <= most:
        return update
    return replace(update, arrays=Nearer(state.arrays, update.arrays, most / distance))


@dataclass(frozen=True)
class Nearer(Mapping[str, Float32]):
    """before + share * (sent - before), each tensor, or part of one, computed when asked for. A report begins at 0."""

    before: Arrays
    sent: Arrays
    share: float

    def __getitem__(self, name: str) -> Float32:
        whole = self.form(name)
        return self.part(name, 0, whole.size).reshape(whole.shape)

    def form(self, name: str) -> Form:
        return form(self.sent, name)

    def part(self, name: str, begin: int, end: int) -> Float32:
        before = part(self.before, name, begin, end).astype(np.float64) if name in self.before else 0.0
        moved: Float32 = (before + self.share * (part(self.sent, name, begin, end) - before)).astype(np.float32)
        return moved

    def __iter__(self) -> Iterator[str]:
        return iter(self.sent)

    def __len__(self) -> int:
        return len(self.sent)
