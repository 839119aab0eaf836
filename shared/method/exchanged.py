"""What clients and the aggregator exchange and keep: parameters, one client's update, the state between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.method.parameters import Arrays

Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Parameters:
    """What travels, either way: named float32 arrays (a lazy mapping where they lie on disk) and named scalars."""

    arrays: Arrays
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What one client sent in one round."""

    client: str
    arrays: Arrays
    scalars: Scalars


@dataclass(frozen=True)
class State:
    """The aggregator's memory between rounds: mean arrays and scalars, each enrolled client's latest scalars, and the
    arrays made for one client alone, where a strategy makes some."""

    arrays: Arrays
    scalars: Scalars = field(default_factory=dict)
    latest: Mapping[str, Scalars] = field(default_factory=dict)
    own: Mapping[str, Arrays] = field(default_factory=dict)
