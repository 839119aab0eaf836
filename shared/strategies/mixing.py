"""How a client mixes the mean with its own update, from scalars that the aggregator tells it.

The aggregator mixes where it has single updates; under secure aggregation each client mixes for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shared.errors import ProtocolError
from shared.method.exchanged import Parameters, Scalars
from shared.method.ranges import Range


@dataclass(frozen=True)
class Mixing:
    """A strategy's mixture of the mean and a client's own update.

    told: the name and range of each scalar that a client is told. tell: (latest visible scalars of all clients, one
    client) -> the told scalars of that client. mix: (told, mean, own update) -> the client's parameters. mean_alone:
    the told scalars with which `mix` gives the mean itself. least_share: the least part of the mean that a client gets.
    """

    told: Mapping[str, Range]
    tell: Callable[[Mapping[str, Scalars], str], Scalars]
    mix: Callable[[Scalars, Parameters, Parameters], Parameters]
    mean_alone: Scalars
    least_share: float

    def split_told(self, given: Parameters) -> tuple[Scalars, Parameters]:
        """The told scalars and the mean by itself. ProtocolError for a told scalar that is missing or out of range."""
        for name, bounds in self.told.items():
            if name not in given.scalars or given.scalars[name] not in bounds:
                expected = f"expected a {name} from {bounds.least:g} to {bounds.most:g} with the mean"
                raise ProtocolError(f"{expected}, got another or none")
        told = {name: value for name, value in given.scalars.items() if name in self.told}
        return told, self.without_told(given)

    def without_told(self, given: Parameters) -> Parameters:
        """The mean by itself, as all clients are given it."""
        return Parameters(given.arrays, {n: value for n, value in given.scalars.items() if n not in self.told})
