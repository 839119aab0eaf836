"""Base of the trainers of all tasks: a model in training on one shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_service.models.initial_filter import Filter
from client_service.models.parameter_transfer import RowKind, ShardRows, copy_matched_rows, copy_shared, match_model
from client_service.models.score_fusion import Recipe
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.optimisers import make_optimiser
from client_service.training.training_state import (
    MODEL,
    TABLES,
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
    to_tensors,
)
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES, initial_parameters
from shared.strategies.local_client import PLAIN, Objective, Penalty

B = TypeVar("B")
Int64 = NDArray[np.int64]


@dataclass
class Figures:
    """Figures of a round's training, which stay in the silo."""

    loss: float = float("nan")
    saturated: float = 0.0
    table_steps: int = 0
    with_margins: bool = False  # are they in the loss? In the warm-up they are not


class TrainingShard(Protocol):
    """Shard in training: the client's name and a digest of its data."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...


class Trainer(ABC):
    """Client half of every strategy, for all tasks.

    It implements shared.strategies.local_client.LocalClient. A task's trainer has `build_model`, and either
    `draw_batches` and `find_loss`, or `train`. `context` is set before each round. Slow work ends with Interrupted once
    `interrupt` is set.

    tables: private parameters beside the model's. start, recipe: choices that validation made before the first round.
    basis, content: digests of the common basis and of the content sums, "" without. exchanged: tensors that clients
    with this model can exchange.
    """

    task: ClassVar[str]
    shard: TrainingShard
    model: nn.Module
    tables: nn.Module
    start: Filter | None = None
    recipe: Recipe | None = None
    basis = ""
    content = ""

    def __init__(
        self,
        shard: Any,
        method: MethodSettings,
        device: torch.device,
        interrupt: Interrupt = NEVER,
        kind: str = "",
    ) -> None:
        """Prepares training of a model on a shard.

        kind: the model's name, "" the one of the settings. Raises SettingsError for a model of another task.
        """
        self.kind = kind or method.model
        self.shard, self.method, self.device, self.interrupt = shard, method, device, interrupt
        exchange = EXCHANGES[self.kind]
        if exchange.task != self.task:
            known = ", ".join(name for name, one in EXCHANGES.items() if one.task == self.task)
            raise SettingsError(
                f"model: expected one for task {self.task!r} ({known}), got {self.kind!r}, for {exchange.task!r}"
            )
        self.exchanged = exchange.tensors(method)
        self.figures, self.context = Figures(), RoundContext(round=1, rounds=1, seed=0)
        self.received = self._held = Parameters({})
        self._received_tensors: dict[str, Tensor] | None = None
        self._optimisers: dict[str, torch.optim.Optimizer] = {}
        self._fitted = True
        self.tables = nn.Module()
        self.model = self.build_model().to(device)
        self.initialise(seed=0)

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Builds the model of this shard, on the CPU; exchangeable parameters are overwritten later."""

    def draw_batches(self, generator: np.random.Generator) -> Iterable[Int64]:
        """Yields the rows of the examples of an epoch, batch by batch."""
        raise NotImplementedError

    def find_loss(self, rows: Int64) -> Tensor:
        """Computes the mean loss of these examples."""
        raise NotImplementedError

    def train(self, objective: Objective = PLAIN) -> None:
        """Runs the round's local epochs with the model's own loss.

        Margins are not used here. Raises SettingsError for an objective with another loss.
        """
        if objective.loss:
            words = f"expected one that trains with the model's own loss, as task {self.task!r} has no other"
            raise SettingsError(f"strategy: {words}, got {objective.loss!r}")
        generator = np.random.default_rng(self.draw_seed("train"))
        for _ in range(self.method.local_epochs):
            self.figures = Figures(loss=self.run_epoch(self.draw_batches(generator), self.find_loss, objective))

    def sum_gradients(self) -> tuple[dict[str, Float32], int]:
        """Sums the loss's gradient over all examples, and counts these.

        The gradient is by exchanged parameter.
        """
        trained, examples, losses = dict(self.model.named_parameters()), 0, StepValues(self.device)
        self.model.zero_grad()
        for rows in self.interrupt.check_each(self.draw_batches(np.random.default_rng(self.draw_seed("train")))):
            loss = self.find_loss(rows)
            (loss * len(rows)).backward()  # type: ignore[no-untyped-call]
            examples += len(rows)
            losses.add(loss)
        self.figures = Figures(loss=losses.mean())
        found = {tensor.name: trained[tensor.name] for tensor in self.exchanged}
        given = {n: torch.zeros_like(one) if one.grad is None else one.grad for n, one in found.items()}
        return {name: value.cpu().numpy().copy() for name, value in given.items()}, examples

    @property
    def exact(self) -> bool:
        """Whether the model begins at a filter, so that its MLPs begin at zero."""
        return self.start is not None

    @property
    def row_kinds(self) -> Mapping[str, RowKind]:
        """Parameters with a row for each user, item or node of the shard."""
        return {}

    @property
    def rows(self) -> ShardRows:
        """Ids of the shard's rows; none without parameters that have rows."""
        return ShardRows((), ())

    def initialise(self, seed: int) -> None:
        """Sets all exchangeable parameters to the start of a run with this seed."""
        self.load(Parameters(initial_parameters(sorted(self.exchanged), seed, exact=self.exact)))

    def load(self, received: Parameters) -> None:
        """Overwrites the named parameters, and stores those received for penalties."""
        held = self.select_held(received)
        load_named(self.model, held)
        self._remember(received, held)

    def select_held(self, received: Parameters) -> Parameters:
        """Selects the part of the received parameters that the model holds; by default all."""
        return received

    def arrays(self) -> dict[str, Float32]:
        """Returns the exchangeable parameters as they are now, on the CPU."""
        return copy_named(self.model, (tensor.name for tensor in self.exchanged))

    def state(self) -> TrainingState:
        """Returns the training state as it is now, on the CPU.

        It must be stored before training continues.
        """
        return capture(self.model, self.tables, self._optimisers, self.received, self._fitted)

    def fits(self, state: TrainingState) -> bool:
        """Tells whether a state belongs to this model."""
        return fits(state, self.model, self.tables)

    def restore(self, state: TrainingState) -> None:
        """Restores a state that fits; training continues as it would have, to the bit."""
        self._remember(state.received, self.select_held(state.received))
        fill(self.model, state.part(MODEL))
        fill(self.tables, state.part(TABLES))
        self._fitted = state.fitted
        self._optimisers = {
            only: restore_optimiser(self.build_optimiser(only), self.model, memory)
            for only, memory in state.optimiser_states().items()
        }

    def transfer(self, trained: Mapping[str, Tensor], old: ShardRows) -> bool:
        """Copies parameters that were trained on a shard with the rows `old`.

        Returns False, and changes nothing, for another kind of model or another catalogue. Rows that both shards have
        are copied; the others begin as in a run.
        """
        kinds = self.row_kinds
        matched = match_model(self.model, kinds, trained, old, self.rows)
        if matched is None:
            return False
        copy_shared(self.model, kinds, trained)
        copy_matched_rows(self.model, kinds, trained, matched)
        return True

    def measure(self, name: str) -> tuple[float, ...]:
        """Computes a measure by its name.

        Raises SettingsError if the task has none.
        """
        raise SettingsError(
            f"strategy: expected one that needs no measure, as task {self.task!r} has none, got {name!r}"
        )

    def comparable_kernels(self) -> tuple[Float64, Float64] | None:
        """Returns the anchor's kernel and the own one, as the divergence compares them.

        None without an anchor.
        """
        return None

    def generator(self, purpose: str, *, once_a_run: bool = False) -> np.random.Generator:
        """Returns a generator for noise on messages: see `seed_noise`."""
        return seed_noise(self.shard.digest, self.context, purpose, once_a_run=once_a_run)

    def draw_seed(self, purpose: str) -> int:
        """Computes the seed of a run, client, round and purpose.

        A round that is run again draws the same.
        """
        return seed_draws(self.shard.name, self.context, purpose)

    def parameter_groups(self, only: str) -> list[dict[str, Any]]:
        """Groups parameters whose name starts with `only` by learning rate; by default one group."""
        trained = [value for name, value in self.model.named_parameters() if name.startswith(only)]
        return [{"params": trained, "lr": self.method.learning_rate}]

    def build_optimiser(self, only: str) -> torch.optim.Optimizer:
        """Builds an optimiser of the parameters whose name starts with `only`."""
        return make_optimiser(self.method.optimiser, self.parameter_groups(only))

    def take_optimiser(self, only: str) -> torch.optim.Optimizer:
        """Returns the optimiser of the round before, or a new one."""
        if only not in self._optimisers:
            self._optimisers[only] = self.build_optimiser(only)
        return self._optimisers[only]

    def run_epoch(
        self,
        batches: Iterable[B],
        loss_of: Callable[[B], Tensor],
        objective: Objective,
        after_step: Callable[[], None] | None = None,
    ) -> float:
        """Trains on each batch once, and returns the mean loss with the objective's penalty."""
        optimiser, losses = self.take_optimiser(objective.only), StepValues(self.device)
        for batch in self.interrupt.check_each(batches):
            loss = loss_of(batch)
            if objective.penalty is not None:
                loss = loss + self._penalise(objective.penalty)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if after_step is not None:
                after_step()
            losses.add(loss)
        return losses.mean()

    def _penalise(self, penalty: Penalty) -> Tensor:
        if self._received_tensors is None:  # once a round, not once a batch
            self._received_tensors = to_tensors(self._held, self.device)
        value: Tensor = penalty(dict(self.model.named_parameters()), self._received_tensors)
        return value

    def _remember(self, received: Parameters, held: Parameters) -> None:
        self.received, self._held, self._received_tensors = received, held, None
