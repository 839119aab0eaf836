"""Divergence-resistant aggregation: D', the centre of the absolute changes |w_i - w| of a round's updates.

D' = |D| exactly where the clients' changes have one sign, and larger where they disagree.

Lou et al.: Efficient federated graph aggregation. Scientific Reports 15, 23394 (2025): Algorithm 1, line 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.method.declaration import TensorSpec
from shared.method.exchanged import Parameters, State, Update
from shared.method.graph import Float64
from shared.method.parameters import Array, Arrays, Form, form, part
from shared.strategies.strategy import Combine

MAGNITUDE = "magnitude."
"""What the name of a tensor's magnitudes begins with."""
REPORTED = MAGNITUDE + "update"
"""The one number that a client of a secure federation reports of its whole update."""


def declare_magnitude() -> tuple[TensorSpec, ...]:
    """The one number that tells how far an update was moved: it only goes up."""
    return (TensorSpec(name=REPORTED, shape=(1,)),)


def report_magnitude(leaving: Parameters, base: Arrays) -> Parameters:
    """What leaves a client, and beside it the root mean square of leaving - base over all numbers.

    base: where the round began for all clients. One number and not one for each: of sums of x and of |x| over three
    silos most numbers could be told apart, as each is +-|x| (tests/attacks/test_reported_magnitudes.py). It is made of
    what leaves, after noise where there is some, so that it tells nothing that the update does not.
    """
    changes = [np.subtract(value, base[name], dtype=np.float64) for name, value in leaving.arrays.items()]
    squares, count = sum(float(np.square(one).sum()) for one in changes), sum(one.size for one in changes)
    found = np.array([np.sqrt(squares / max(1, count))], dtype=np.float32)
    return Parameters({**leaving.arrays, REPORTED: found}, leaving.scalars)


def combine_with_magnitudes(before: State, updates: Sequence[Update], *, combine: Combine) -> State:
    """The centre of the updates; its reports hold the same centre of their magnitudes.

    The same: with a median or Krum, one bad client does not set the size of everybody's step.
    """
    return combine(before, [replace(one, arrays=WithMagnitudes(before.arrays, one.arrays)) for one in updates])


@dataclass(frozen=True)
class WithMagnitudes(Mapping[str, Array]):
    """What was sent, and under other names |sent - before| of each tensor, computed part by part when asked for."""

    before: Arrays
    sent: Arrays

    def __getitem__(self, name: str) -> Array:
        whole = self.form(name)
        return self.part(name, 0, whole.size).reshape(whole.shape)

    def form(self, name: str) -> Form:
        return form(self.sent, name.removeprefix(MAGNITUDE))

    def part(self, name: str, begin: int, end: int) -> Array:
        values = part(self.sent, name.removeprefix(MAGNITUDE), begin, end)
        return values if not name.startswith(MAGNITUDE) else self._distance(name, values, begin, end)

    def _distance(self, name: str, values: Array, begin: int, end: int) -> Float64:
        old = part(self.before, name.removeprefix(MAGNITUDE), begin, end)
        return np.abs(values.astype(np.float64) - old)

    def __iter__(self) -> Iterator[str]:
        yield from self.sent
        yield from (MAGNITUDE + name for name in self.sent)

    def __len__(self) -> int:
        return 2 * len(self.sent)
