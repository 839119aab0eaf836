"""What clients and the aggregator exchange and keep: parameters, one client's update, the state between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.method.parameters import Arrays

Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Parameters:
    """What travels, either way: named arrays (a lazy mapping where they lie on disk) and named scalars.

    An array is float32, or uint32 where the tensor is declared as U32.
    """

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
    """What the aggregator keeps between rounds.

    arrays, scalars: the centre of the clients' updates, or what a strategy's step makes of it; of a U32 tensor their
    sum modulo 2^32. latest: the last scalars of each enrolled client. own: the arrays made for one client alone.
    memory: what the step remembers, such as an optimiser's moments; no client is ever sent it. reports: the centre of
    the tensors that only go up, while a step reads them; they are not kept.
    """

    arrays: Arrays
    scalars: Scalars = field(default_factory=dict)
    latest: Mapping[str, Scalars] = field(default_factory=dict)
    own: Mapping[str, Arrays] = field(default_factory=dict)
    memory: Arrays = field(default_factory=dict)
    reports: Arrays = field(default_factory=dict)
