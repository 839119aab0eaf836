"""What a federated algorithm is: a record of functions for both sides, FedAvg where nothing else is said."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shared.method.declaration import Declaration
from shared.method.exchange import EXCHANGES, ITEM_TABLE, Exchange
from shared.method.exchanged import Parameters, State, Update
from shared.method.parameters import Float32, blocks, part
from shared.method.ranges import Ranges
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient


def fit_plain(client: LocalClient, received: Parameters) -> Parameters:
    """FedAvg's half at the client: load, train, send."""
    client.load(received)
    client.train()
    return Parameters(client.arrays())


def mean(state: State, updates: Sequence[Update]) -> State:
    """Eq. 13: unweighted mean of the round's updates, tensor by tensor, summed in the order of client names.

    Scalars are summed exactly, so that the mean of equal ones is that very one.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    arrays = {name: _mean_array(name, ordered) for name in state.arrays}
    names = sorted({name for update in ordered for name in update.scalars})
    scalars = {name: statistics.mean(u.scalars[name] for u in ordered if name in u.scalars) for name in names}
    latest = {**state.latest, **{update.client: dict(update.scalars) for update in ordered}}
    return State(arrays, scalars, latest)


def _mean_array(name: str, updates: Sequence[Update]) -> Float32:
    """Sums in float64: with equal inputs the mean is then exactly that input. Block by block: a tensor may be large."""
    found = np.empty(np.shape(updates[0].arrays[name]), dtype=np.float32)
    flat = found.reshape(-1)
    for begin, end in blocks(flat.size):
        total = part(updates[0].arrays, name, begin, end).astype(np.float64)
        for update in updates[1:]:
            total += part(update.arrays, name, begin, end)
        flat[begin:end] = total / len(updates)
    return found


def same_for_all(state: State, update: Update | None) -> Parameters:
    """FedAvg's answer: everybody gets the mean. `update` is the client's last accepted one, None if it never sent."""
    del update
    return Parameters(state.arrays)


Mix = Callable[[float, Parameters, Parameters], Parameters]
"""(rhobar, mean, own update) -> the client's parameters: Eq. 14 where the client does it, under secure aggregation."""


def the_mean(near: float, mean: Parameters, own: Parameters) -> Parameters:
    """FedAvg's answer, at the client."""
    del near, own
    return Parameters(mean.arrays)


@dataclass(frozen=True)
class Strategy:
    """One algorithm, both halves. `scalars` names all scalars that may leave a client, `ranges` what each may be.

    `model` names a model of the client, "" the one that the settings name; of the tensors that clients with it can
    exchange, `shared` chooses those that leave. `mix` does what `personalise` does, at a client that alone has its
    update.
    """

    name: str
    shared: Callable[[str], bool]
    scalars: tuple[str, ...] = ()
    ranges: Ranges = field(default_factory=dict)
    fit: Callable[[LocalClient, Parameters], Parameters] = fit_plain
    aggregate: Callable[[State, Sequence[Update]], State] = mean
    personalise: Callable[[State, Update | None], Parameters] = same_for_all
    mix: Mix = the_mean
    model: str = ""

    def exchange(self, method: MethodSettings) -> Exchange:
        """What clients with its model can exchange."""
        return EXCHANGES[self.model or method.model]

    def shares_items(self, method: MethodSettings) -> bool:
        """Does it need a catalogue of items that all clients share? Then which rows of an update move tells which
        items a silo has."""
        return any(name == ITEM_TABLE and self.shared(name) for name in self.exchange(method).names)

    @property
    def needs_single_updates(self) -> bool:
        """Does its aggregator need more than the mean of the updates, so that it cannot work on a masked sum?"""
        mixes = self.personalise is same_for_all or self.mix is not the_mean
        return self.aggregate is not mean or not mixes

    def declaration(self, method: MethodSettings) -> Declaration:
        """All that this strategy may send with these settings."""
        chosen = (spec for spec in self.exchange(method).tensors(method) if self.shared(spec.name))
        tensors = tuple(sorted(chosen, key=lambda spec: spec.name))
        return Declaration(strategy=self.name, tensors=tensors, scalars=self.scalars)


def all_exchanged(method: MethodSettings) -> Callable[[str], bool]:
    """Whatever clients with the settings' model can exchange."""
    return EXCHANGES[method.model].names.__contains__


def both_mlps(name: str) -> bool:
    """The pooling and the predictive MLP, and nothing else."""
    return name.startswith(("pooling.", "predictive."))
