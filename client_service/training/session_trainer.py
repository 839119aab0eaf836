"""Trains a session model on one silo's clicks: load, train, arrays, and transfer to a changed shard."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from client_service.data.sessions import Int64, Prefixes, SessionShard, shuffled_batches
from client_service.models.initial_filter import Filter
from client_service.models.parameter_transfer import RowKind, ShardRows, are_alike, carry_plain, carry_rows, match_rows
from client_service.models.score_fusion import Recipe
from client_service.models.sequence.srgnn import SRGNN
from client_service.models.sequence.tagnn import TAGNN
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.item_trainer import Figures
from client_service.training.training_state import (
    MODEL,
    RoundContext,
    StepValues,
    TrainingState,
    capture,
    copy_named,
    fill,
    fits,
    load_named,
    restore_optimiser,
    seed_draws,
    seed_noise,
    tensors_of,
)
from shared.errors import ProtocolError, SettingsError
from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES, ITEM_TABLE, initial_parameters
from shared.strategies.local_client import PLAIN, Objective, Penalty

MODELS: dict[str, type[SRGNN]] = {"srgnn": SRGNN, "tagnn": TAGNN}
NOTHING = nn.Module()  # private parameters: there are none


class SessionTraining:
    """The client's half of every strategy with a session model. `moment` is set each round.

    There are no private parameters: what stays in the silo is the sessions, and what the optimiser remembers. The model
    holds the rows of the item table that are trained: the silo's own items', or the whole catalogue's. The other rows
    leave as they came: an optimiser with weight decay would draw them to 0, and the mean of all silos with them.

    own: the rows of the model that are the shard's items', in their order, (N,).
    """

    start: Filter | None = None
    recipe: Recipe | None = None
    basis = ""

    def __init__(
        self,
        shard: SessionShard,
        method: MethodSettings,
        device: torch.device,
        interrupt: Interrupt = NEVER,
        kind: str = "",
    ) -> None:
        name = kind or method.model
        if name not in MODELS:
            raise SettingsError(f"model: expected one of {', '.join(MODELS)} for sessions, got {name!r}")
        self.method, self.device, self.interrupt, self._kind = method, device, interrupt, name
        self._tensors = EXCHANGES[name].tensors(method)
        self.figures, self.moment = Figures(), RoundContext(round=1, rounds=1, seed=0)
        self.received = self._held = Parameters({})
        self._received_tensors: dict[str, Tensor] | None = None
        self.take_up(shard)
        self.initialise(seed=0)

    @property
    def holds_catalogue(self) -> bool:
        """Are rows of all items of the catalogue trained, or those of the silo's own?"""
        return self.method.sessions.candidates == "catalogue"

    def state(self) -> TrainingState:
        """As it is now, on the CPU: to be kept before training goes on."""
        return capture(self.model, NOTHING, self._optimisers, self.received, fitted=True)

    def fits(self, state: TrainingState) -> bool:
        """Is it a state of this very model?"""
        return fits(state, self.model, NOTHING)

    def restore(self, state: TrainingState) -> None:
        """Take over a state that fits: training goes on as it would have, to the bit."""
        self._receive(state.received)
        fill(self.model, state.part(MODEL))
        self._optimisers.clear()
        for only, memory in state.memories().items():
            self._optimisers[only] = restore_optimiser(self._build_optimiser(only), self.model, memory)

    def take_up(self, shard: SessionShard) -> None:
        """Train on this shard from now on, once parameters have been loaded; of another one nothing is remembered."""
        whole = self.holds_catalogue
        self.shard = shard
        self._rows = np.arange(self.method.catalogue) if whole else shard.places
        self.own = shard.places if whole else np.arange(len(shard.places))
        self._examples = shard.train.renumber(self.own)
        self.model = MODELS[self._kind](len(self._rows), self.method.width).to(self.device)
        self._optimisers: dict[str, torch.optim.Optimizer] = {}

    def initialise(self, seed: int) -> None:
        """All parameters where a run with this seed begins."""
        self.load(Parameters(initial_parameters(sorted(self._tensors), seed, exact=False)))

    def load(self, received: Parameters) -> None:
        """Overwrite the named parameters, and keep what came for penalties and for the rows that are not trained."""
        load_named(self.model, self._receive(received))

    def train(self, objective: Objective = PLAIN) -> None:
        """The round's local epochs of cross entropy over the model's items. There are no margins, whatever is asked
        for. SettingsError for another loss.
        """
        if objective.loss:
            raise SettingsError(
                "strategy: expected one that trains with the model's own loss, as sessions have no other"
            )
        generator = np.random.default_rng(seed_draws(self.shard.name, self.moment, "train"))
        optimiser = self._take_optimiser(objective.only)
        for _ in range(self.method.local_epochs):
            batches = shuffled_batches(self._examples.lengths, self.method.batch_size, generator)
            losses = StepValues(self.device)
            for rows in self.interrupt.each(batches):
                losses.add(self._step(optimiser, rows, objective.penalty))
            self.figures = Figures(loss=losses.mean())

    def arrays(self) -> dict[str, Float32]:
        """What clients with this model can exchange, as it is now, on the CPU."""
        found = copy_named(self.model, (tensor.name for tensor in self._tensors))
        if len(self._rows) < self.method.catalogue:
            own, found[ITEM_TABLE] = found[ITEM_TABLE], self._table.copy()
            found[ITEM_TABLE][self._rows] = own
        return found

    def measure(self, name: str) -> tuple[float, ...]:
        """SettingsError: nothing is known of a session model by a number."""
        raise SettingsError(f"strategy: expected one that needs no {name!r}, which sessions have not")

    def generator(self, purpose: str, *, once_a_run: bool = False) -> np.random.Generator:
        """Random numbers for noise on what leaves: see `seed_noise`."""
        return seed_noise(self.shard.digest, self.moment, purpose, once_a_run=once_a_run)

    def _step(self, optimiser: torch.optim.Optimizer, rows: Int64, penalty: Penalty | None) -> Tensor:
        clicks, lengths, targets = self._batch(self._examples.select(rows))
        loss = nn.functional.cross_entropy(self.model(clicks, lengths), targets)
        loss = loss if penalty is None else loss + self._penalised(penalty)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss

    def _batch(self, examples: Prefixes) -> tuple[Tensor, Tensor, Tensor]:
        clicks, lengths = examples.pad()
        clicks_, lengths_, targets = map(torch.from_numpy, (clicks, lengths, examples.targets))
        return clicks_.to(self.device), lengths_.to(self.device), targets.to(self.device)

    def _penalised(self, penalty: Penalty) -> Tensor:
        if self._received_tensors is None:  # once a round, not once a batch
            self._received_tensors = tensors_of(self._held, self.device)
        value: Tensor = penalty(dict(self.model.named_parameters()), self._received_tensors)
        return value

    def _receive(self, received: Parameters) -> Parameters:
        """Keep what came. What of it the model holds: of the item table its rows. ProtocolError for another table."""
        arrays, shape = dict(received.arrays), (self.method.catalogue, self.method.width)
        if ITEM_TABLE in arrays:
            self._table = np.asarray(arrays[ITEM_TABLE])
            if self._table.shape != shape:
                raise ProtocolError(f"{ITEM_TABLE}: expected shape {list(shape)}, got {list(self._table.shape)}")
            arrays[ITEM_TABLE] = self._table[self._rows]
        self.received, self._received_tensors = received, None
        self._held = Parameters(arrays, received.scalars)
        return self._held

    def _take_optimiser(self, only: str) -> torch.optim.Optimizer:
        """The one that goes on from the round before, with this round's rate."""
        optimiser = self._optimisers.setdefault(only, self._build_optimiser(only))
        for group in optimiser.param_groups:
            group["lr"] = self._rate()
        return optimiser

    def _rate(self) -> float:
        """The learning rate of this round: a tenth after each `rate_step` rounds."""
        step = self.method.sessions.rate_step
        return self.method.learning_rate * (0.1 ** ((self.moment.round - 1) // step) if step else 1.0)

    def _build_optimiser(self, only: str) -> torch.optim.Optimizer:
        trained = [value for name, value in self.model.named_parameters() if name.startswith(only)]
        rate, decay = self.method.learning_rate, self.method.sessions.weight_decay
        if self.method.optimiser == "adam":
            return torch.optim.Adam(trained, lr=rate, weight_decay=decay, fused=True)
        kind = torch.optim.SGD if self.method.optimiser == "sgd" else torch.optim.RMSprop
        return kind(trained, lr=rate, weight_decay=decay)


def rows_of_sessions(shard: SessionShard) -> ShardRows:
    """Its items: a visit is nobody's."""
    return ShardRows((), shard.item_ids, shard.catalogue)


def carry_sessions(training: SessionTraining, trained: Mapping[str, Tensor], old: ShardRows) -> bool:
    """Take over what was trained on a shard with the rows `old`; False, and nothing changed, where that is no such
    model, or of another catalogue. Items that both shards have keep their rows; the others begin as a run does."""
    new = rows_of_sessions(training.shard)
    kinds: Mapping[str, RowKind] = {} if training.holds_catalogue else {ITEM_TABLE: "items"}
    if old.catalogue != new.catalogue or not are_alike(training.model, kinds, trained):
        return False
    carry_plain(training.model, kinds, trained)
    carry_rows(training.model, kinds, trained, match_rows(old, new))
    return True
