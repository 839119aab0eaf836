"""What a declared scalar may be: a closed range for each, as wide as its equation allows and no wider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.errors import ProtocolError

ROUNDING = 1e-4  # beyond an exact bound: a sum of many float32 may be a little outside


@dataclass(frozen=True)
class Range:
    """All numbers from `least` to `most`, both included."""

    least: float
    most: float

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def clamped(self, value: float) -> float:
        """The nearest number within. Noise that was put on the value before protects it as much afterwards."""
        return min(max(value, self.least), self.most)


Ranges = Mapping[str, Range]


def require_within(ranges: Ranges, scalars: Mapping[str, float]) -> None:
    """ProtocolError for a scalar outside of its range; the message says which, what was expected and what came.

    It holds the number, so it is for the one who sent it, and for no log.
    """
    for name, value in sorted(scalars.items()):
        if value not in ranges[name]:
            expected = f"{ranges[name].least:g} to {ranges[name].most:g}"
            raise ProtocolError(f"{name}: expected a number from {expected}, got {value:g}")


def clamp_scalars(ranges: Ranges, scalars: Mapping[str, float]) -> dict[str, float]:
    """Every scalar within its range: what noise has carried out of it is put back to its end."""
    return {name: ranges[name].clamped(value) for name, value in scalars.items()}
