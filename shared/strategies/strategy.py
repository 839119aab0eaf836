"""Strategy: a federated algorithm as a record of functions for both sides.

Where a field is left out, FedAvg's function is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from shared.errors import ProtocolError, SettingsError
from shared.message import Message
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import STORED, Array, Arrays, Parameters, Scalars, State, Update, array_form
from shared.method.settings import MethodSettings, Server, validate_settings
from shared.method.tensors import EXCHANGES, ITEM_TABLE, ExchangeableTensors, Range, Ranges, Tensor, initial_parameters
from shared.strategies.aggregation import Mixing, mean_of_updates
from shared.strategies.collaboration_graph import Collaboration
from shared.strategies.local_client import PLAIN, FitInput, FitResult, LocalClient, Objective


def fit_plain(
    client: LocalClient,
    received: Parameters,
    *,
    objectives: Sequence[Objective] = (PLAIN,),
    sent: Callable[[str], bool] | None = None,
) -> Parameters:
    """Trains for each objective in turn from the received parameters, as FedAvg does.

    sent: test for the tensors to send; None: all.
    """
    client.load(received)
    for objective in objectives:
        client.train(objective)
    arrays = client.arrays()
    return Parameters(arrays if sent is None else {name: value for name, value in arrays.items() if sent(name)})


@dataclass(frozen=True)
class Scalar:
    """Declaration of one scalar that leaves a client beside its tensors.

    range: its possible values, by its equation; another value is refused.
    visible: the aggregator needs each client's value, which therefore is not masked under secure aggregation.
    returned: clients get its mean back.
    released: range into which it is clipped before its noise (differential privacy); None: it has no noise.
    compares_spectra: it compares the shard's spectrum with the anchor's, so that a client needs the anchor of the
    round.
    steady: it follows from the shard and the anchor alone, the same in every round of every run with that anchor.
    """

    range: Range
    visible: bool = False
    returned: bool = False
    released: Range | None = None
    compares_spectra: bool = False
    steady: bool = False


class OwnSettings(Message):
    """Settings of one strategy, declared by it; this one has none."""


Own = TypeVar("Own", bound=OwnSettings)


def read_strategy_settings(model: type[Own], method: MethodSettings) -> Own:
    """Reads the strategy's settings of a run; SettingsError names each wrong field."""
    try:
        return validate_settings(model, dict(method.strategy))
    except SettingsError as error:
        known = ", ".join(model.model_fields) or "no setting of its own"
        raise SettingsError(f"strategy: expected {known}; {error}") from None


NO_SETTINGS = OwnSettings()
NO_ARRAYS: Arrays = {}
Fit = Callable[[LocalClient, FitInput], Parameters]
"""(client, its input) -> the parameters that leave; a `FitResult` if the strategy has client memory."""
Combine = Callable[[State, Sequence[Update]], State]
"""(state before the round, its updates) -> the centre of the updates: arrays, scalars and reports."""
Step = Callable[[State, State], State]
"""(state before the round, centre of its updates) -> the state after it, with the step's memory. Pure."""
Report = Callable[[Parameters, Arrays], Parameters]
"""(parameters that leave a client, arrays that all began the round with) -> the same with the declared reports."""
Answer = Callable[[State, Update | None], Parameters]
"""(state, the client's last accepted update; None if it never sent) -> the parameters of that client."""


@dataclass(frozen=True)
class Strategy:
    """Federated algorithm, both halves; where a function is None, FedAvg's is used.

    shared: (name of a tensor) -> does it leave a client? Of the tensors that EXCHANGES lists for the model.
    scalars: numbers that may leave beside them, with range, visibility and use (`Scalar`).
    reports: tensors that clients send to the step and never receive.
    broadcasts: tensors that clients receive and never send: entries of `State.memory`; zeros before the first step.
    client_memory: tensors that each client keeps over rounds and restarts, and never sends.
    reparametrised: training leads elsewhere than to what leaves; the step computes where (FedNova).
    fit: a client's half of a round, by the operations of `LocalClient`. It gets a `FitInput` with broadcasts and
    memory, and returns a `FitResult` where it has client memory.
    report: computes the reports from what leaves, after its noise.
    combine: (state, updates) -> their centre. It needs single updates. None: their mean (Eq. 13).
    step: (state, centre) -> next state. It works on a masked sum too. None: the state becomes the centre.
    server: optimiser that the step is built from, where the settings name none.
    mixing: how a client's own update is mixed with the mean, at the aggregator or at the client.
    answer: (state, last update of a client) -> that client's parameters. It needs single updates. None: the state,
    mixed.
    model: model of the clients; "": that of the run's settings.
    settings: its own settings, which `--set strategy.mu=0.1` sets and `lpsfed tune` searches.
    own_tensors: what it exchanges in place of a model's tensors, where it trains none.
    enough_rounds: number of rounds after which nothing changes any more; None: it trains.
    sums_alone: no run trains, and only sums leave; each silo makes its model from the sums.
    collaboration: weights of who learns from whom, by `State.memory`, for the operator's page.
    shard_statistics: further data of a shard that leave: "features" as statistics, or "counts" of examples. A silo's
    policy must then name the strategy.
    """

    name: str
    shared: Callable[[str], bool]
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    reports: tuple[TensorSpec, ...] = ()
    broadcasts: tuple[TensorSpec, ...] = ()
    client_memory: tuple[TensorSpec, ...] = ()
    reparametrised: bool = False
    fit: Fit = fit_plain
    report: Report | None = None
    combine: Combine | None = None
    step: Step | None = None
    server: Server = "none"
    mixing: Mixing | None = None
    answer: Answer | None = None
    model: str = ""
    settings: OwnSettings = NO_SETTINGS
    own_tensors: Callable[[MethodSettings], tuple[Tensor, ...]] | None = None
    enough_rounds: int | None = None
    sums_alone: bool = False
    collaboration: Callable[[Arrays], Collaboration | None] | None = None
    shard_statistics: frozenset[str] = frozenset()

    def exchange(self, method: MethodSettings) -> ExchangeableTensors:
        """Returns the tensors that clients with its model can exchange."""
        return EXCHANGES[self.model or method.model]

    def shares_items(self, method: MethodSettings) -> bool:
        """Tells whether it shares an item table, and so needs a common catalogue.

        Then the rows that move tell which items a silo has.
        """
        return any(name == ITEM_TABLE and self.shared(name) for name in self.exchange(method).names)

    @property
    def needs_single_updates(self) -> bool:
        """Whether the aggregator needs single updates, so that it cannot use a masked sum."""
        return self.combine is not None or self.answer is not None

    @property
    def ranges(self) -> Ranges:
        """Range of each scalar."""
        return {name: scalar.range for name, scalar in self.scalars.items()}

    @property
    def spectral_scalar(self) -> str | None:
        """Name of the scalar that compares a shard's spectrum with the anchor's, or None."""
        return next((name for name, scalar in self.scalars.items() if scalar.compares_spectra), None)

    def tensors(self, method: MethodSettings) -> tuple[Tensor, ...]:
        """Lists the tensors sent in both directions, by name, with their start rules."""
        exchanged = self.own_tensors or self.exchange(method).tensors
        chosen = (tensor for tensor in exchanged(method) if self.shared(tensor.name))
        return tuple(sorted(chosen, key=lambda tensor: tensor.name))

    def start(self, method: MethodSettings, seed: int) -> dict[str, Array]:
        """Draws the tensors that every client of a run with this seed starts from."""
        exact = method.start != "random" and self.exchange(method).starts_at_filter
        return initial_parameters(self.tensors(method), seed, exact=exact)

    def declaration(self, method: MethodSettings) -> Declaration:
        """Declares all that the strategy may send with these settings.

        Raises SettingsError for a broadcast with a tensor's name.
        """
        tensors = tuple(tensor.spec for tensor in self.tensors(method))
        names = [spec.name for spec in (*tensors, *self.broadcasts)]
        if len(set(names)) != len(names):
            words = "expected broadcasts of other names than its tensors"
            raise SettingsError(f"strategy {self.name}: {words}, got {sorted(names)}")
        return Declaration(
            strategy=self.name,
            tensors=tensors,
            scalars=tuple(self.scalars),
            reports=self.reports,
            broadcasts=self.broadcasts,
        )

    def fit_round(self, client: LocalClient, received: Parameters, memory: Arrays = NO_ARRAYS) -> FitResult:
        """Runs the client's half of a round; returns what leaves, and the new memory.

        received: all that came, broadcasts among it. memory: of the round before; empty: zeros. Raises ProtocolError
        for another memory than the strategy declares.
        """
        model, broadcast = split_broadcasts(received, [spec.name for spec in self.broadcasts])
        held = memory or _zeros(self.client_memory)
        _require_forms(self, held)
        found = self.fit(client, FitInput(model.arrays, model.scalars, broadcast, held))
        kept = found.memory if isinstance(found, FitResult) else NO_ARRAYS
        _require_forms(self, kept)
        return FitResult(found.arrays, found.scalars, kept)

    def aggregate(self, before: State, updates: Sequence[Update]) -> State:
        """Computes the state after a round of readable updates."""
        return self.advance(before, (self.combine or mean_of_updates)(before, updates))

    def advance(self, before: State, centre: State) -> State:
        """Computes the state after a round whose updates have this centre."""
        after = replace(centre, memory=before.memory) if self.step is None else self.step(before, centre)
        return replace(after, reports={})

    def personalise(self, state: State, update: Update | None) -> Parameters:
        """Returns the parameters of a client that has sent `update` last.

        None: it never sent.
        """
        if self.answer is not None:
            return _with_arrays(self.answer(state, update), self._broadcast_arrays(state))
        centre = self.common_answer(state)
        if self.mixing is None or update is None:
            return centre
        server_scalars = self.mixing.scalars_of(state.latest, update.client)
        return self.mix(server_scalars, centre, Parameters(update.arrays, update.scalars))

    def common_answer(self, state: State) -> Parameters:
        """Returns the part of a state that every client is given alike."""
        centre = Parameters(state.arrays, self.returned_scalars(state))
        return _with_arrays(centre, self._broadcast_arrays(state))

    def mix(self, server_scalars: Scalars, mean: Parameters, own: Parameters) -> Parameters:
        """Mixes the mean with a client's own update; broadcasts stay as they came."""
        assert self.mixing is not None, "expected a strategy that mixes"
        centre, broadcast = split_broadcasts(mean, [spec.name for spec in self.broadcasts])
        return _with_arrays(self.mixing.mix(server_scalars, centre, own), broadcast)

    def _broadcast_arrays(self, state: State) -> Arrays:
        kept = {spec.name: state.memory[spec.name] for spec in self.broadcasts if spec.name in state.memory}
        return {**_zeros(self.broadcasts), **kept}

    def returned_scalars(self, state: State) -> Scalars:
        """Returns the state's scalars that clients get."""
        return {n: value for n, value in state.scalars.items() if n in self.scalars and self.scalars[n].returned}


def split_broadcasts(received: Parameters, names: Collection[str]) -> tuple[Parameters, Arrays]:
    """Splits the broadcast tensors of these names from the model's parameters."""
    if not names:
        return received, NO_ARRAYS
    model = {name: value for name, value in received.arrays.items() if name not in names}
    return Parameters(model, received.scalars), {name: received.arrays[name] for name in names}


def _with_arrays(parameters: Parameters, more: Arrays) -> Parameters:
    return Parameters({**parameters.arrays, **more}, parameters.scalars) if more else parameters


def _zeros(specs: Sequence[TensorSpec]) -> dict[str, Array]:
    return {spec.name: np.zeros(spec.shape, STORED[spec.dtype]) for spec in specs}


def _require_forms(strategy: Strategy, memory: Arrays) -> None:
    """Raises ProtocolError unless the arrays are those of the strategy's client memory."""
    expected = {spec.name: spec.form for spec in strategy.client_memory}
    if (got := {name: array_form(memory, name) for name in memory}) != expected:
        words = [[f"{name} {list(shape)}" for name, (_, shape) in sorted(side.items())] for side in (expected, got)]
        raise ProtocolError(f"client memory of {strategy.name}: expected {words[0]}, got {words[1]}")


def own_mean(state: State, update: Update | None) -> Parameters:
    """Returns the client's own weighted mean; the plain one for a client that never sent."""
    return Parameters(state.arrays if update is None else state.own[update.client])


def all_exchanged(method: MethodSettings) -> Callable[[str], bool]:
    """Returns a test for the tensors that clients with the settings' model can exchange."""
    return EXCHANGES[method.model].names.__contains__


def share_nothing(name: str) -> bool:
    """Returns False: no parameter may leave."""
    del name
    return False


def is_mlp(name: str) -> bool:
    """Tells whether a tensor is of the pooling or the predictive MLP."""
    return name.startswith(("pooling.", "predictive."))
