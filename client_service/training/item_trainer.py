"""Trains a model of items on one shard: load, train, arrays, and transfer to a changed shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from client_service.common_basis.basis import CommonBasis
from client_service.data import Shard
from client_service.models.encoder import Encoder
from client_service.models.initial_filter import Filter
from client_service.models.model import Model
from client_service.models.parameter_transfer import (
    ShardRows,
    are_alike,
    carry_plain,
    carry_rows,
    changed_users,
    match_rows,
    print_users,
)
from client_service.models.popularity_angle import PopularityTables
from client_service.models.ranker import Rows
from client_service.models.score_fusion import Recipe
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.client_measures import MEASURES, more_active
from client_service.training.losses import bce, bpr, contrastive
from client_service.training.margins import Margins, fit_tables, is_level
from client_service.training.sampling import Batch, PairSampler
from client_service.training.start_choice import Choice, begin_model
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
    tensors_of,
)
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum
from shared.method.tensors import EXCHANGES, initial_parameters
from shared.strategies.local_client import PLAIN, Loss, Objective, Penalty

MLPS = ("pooling.", "predictive.")


def build_optimiser(model: Model, method: MethodSettings, only: str = "") -> torch.optim.Optimizer:
    """Embeddings and kernels learn at one rate, both MLPs at another. `only`: just those whose name starts so."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if name.startswith(only)]
    private = [parameter for name, parameter in named if not name.startswith(MLPS)]
    mlps = [parameter for name, parameter in named if name.startswith(MLPS)]
    rates = ((private, method.learning_rate), (mlps, method.mlp_learning_rate))
    groups = [{"params": members, "lr": rate} for members, rate in rates if members]
    if method.optimiser == "adam":
        return torch.optim.Adam(groups, fused=True)
    return torch.optim.SGD(groups) if method.optimiser == "sgd" else torch.optim.RMSprop(groups)


def pair_loss(
    model: Model,
    batch: Batch,
    method: MethodSettings,
    margins: Margins | None,
    loss: Loss = "",
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of one batch (Eq. 9, BPR or BCE; "" is the one of the settings) and the share of its positives whose
    angle is at pi: no gradient there. `weights` (M,) scale the pairs of each user, with BPR and BCE."""
    leave_one_out, name = method.leave_one_out, loss or method.loss
    positive, negatives = model.scores(batch.users, batch.items, batch.negatives, leave_one_out=leave_one_out)
    if name != "bc":
        chosen = bpr if name == "bpr" else bce
        by_row = None if weights is None else weights[batch.users]
        return chosen(positive, negatives, batch.excluded, by_row), torch.zeros(())
    bare = torch.tanh(positive)
    widened, level = (bare, is_level(bare)) if margins is None else margins.widened(positive, batch)
    value = contrastive(widened, torch.tanh(negatives), batch.excluded, method.temperature)
    return value, level.float().mean().detach()


__all__ = ["Figures", "LocalTraining", "ObjectiveTerms", "RoundContext"]
EQUAL_WEIGHTS = (1.0, 1.0)


@dataclass(frozen=True)
class ObjectiveTerms:
    """What an objective comes to on this shard: the margins if there are any, and the weight of each user (M,)."""

    objective: Objective
    margins: Margins | None
    weights: Tensor | None


@dataclass
class Figures:
    """What training a round was like. Stays in the silo."""

    loss: float = float("nan")
    saturated: float = 0.0
    table_steps: int = 0
    with_margins: bool = False  # are they in the loss? In the warm-up they are not


class LocalTraining:
    """The client's half of every strategy (see shared.strategies.local_client.LocalClient). `moment` is set each round.

    `kind` names the model, "" the one of the settings. An exact start is at `start`, or where none is given at the
    filter that the shard's validation data prefer; likewise `recipe` says what is fused with the trained score, with
    the scorers of a common basis `basis` among it; the attribute `basis` is its digest, "" where there is none.
    Whatever is slow ends with Interrupted once `interrupt` is set.
    """

    def __init__(
        self,
        shard: Shard,
        spectrum: Spectrum,
        method: MethodSettings,
        device: torch.device,
        start: Filter | None = None,
        interrupt: Interrupt = NEVER,
        kind: str = "",
        recipe: Recipe | None = None,
        basis: CommonBasis | None = None,
    ) -> None:
        self.shard, self.spectrum, self.method, self.device, self.interrupt = shard, spectrum, method, device, interrupt
        name = kind or method.model
        self._exchange = EXCHANGES[name]
        if self._exchange.task != "items":
            raise SettingsError(
                f"model: expected one for interactions of users, got {name!r}, for {self._exchange.task}"
            )
        begun = begin_model(shard, spectrum, method, name, Choice(start=start, recipe=recipe), interrupt, basis)
        self.basis = basis.digest if basis is not None else ""
        self.start, self.recipe, self.fusion, self.codes = begun.start, begun.recipe, begun.fusion, begun.codes
        self.model = begun.model.to(device)
        self.tables = PopularityTables(shard.train, method.width).to(device)
        self.figures = Figures()
        self.moment = RoundContext(round=1, rounds=1, seed=0)
        self.batches = PairSampler(shard.train, batch_size=method.batch_size, negatives=method.negatives, device=device)
        self._optimisers: dict[str, torch.optim.Optimizer] = {}
        self._received_tensors: dict[str, Tensor] | None = None
        self._fitted = False
        self.initialise(seed=0)

    @property
    def exact(self) -> bool:
        """Does the model begin at a filter, so that its MLPs begin with nothing to add to it?"""
        return self.start is not None

    @property
    def anchor(self) -> Float64 | None:
        """The kernel that this round's divergence is measured from."""
        return self.moment.anchor

    @cached_property
    def activity(self) -> Tensor:
        """1 for each user of the more active half, else 0, (M,)."""
        return more_active(self.shard.train).to(self.device)

    def initialise(self, seed: int) -> None:
        """What could be shared, where a run with this seed begins, whether or not it ever is."""
        tensors = sorted(self._exchange.tensors(self.method))
        self.load(Parameters(initial_parameters(tensors, seed, exact=self.exact)))
        self.model.encoder.finish_training()

    def load(self, received: Parameters) -> None:
        """Overwrite the named parameters, and keep what came for penalties and for the refined margin."""
        load_named(self.model, received)
        self.received, self._received_tensors = received, None

    def state(self) -> TrainingState:
        """As it is now, on the CPU: to be kept before training goes on."""
        return capture(self.model, self.tables, self._optimisers, self.received, self._fitted)

    def fits(self, state: TrainingState) -> bool:
        """Is it a state of this very model?"""
        return fits(state, self.model, self.tables)

    def restore(self, state: TrainingState) -> None:
        """Take over a state that fits: training goes on as it would have, to the bit."""
        fill(self.model, state.part(MODEL))
        fill(self.tables, state.part(TABLES))
        self.received, self._received_tensors, self._fitted = state.received, None, state.fitted
        self._optimisers = {
            only: restore_optimiser(build_optimiser(self.model, self.method, only), self.model, memory)
            for only, memory in state.memories().items()
        }

    def train(self, objective: Objective = PLAIN) -> None:
        """The round's local epochs; in the warm-up the popularity tables are fitted and no margin is used yet."""
        generator = self.torch_generator("train")
        warming = objective.bias_aware and self.moment.round <= self.method.warmup(self.moment.rounds)
        self.figures = Figures()
        if warming or (objective.bias_aware and not self._fitted):  # who comes late, or again, has had no warm-up
            self.figures.table_steps = fit_tables(self.tables, self.batches, self.method, generator, self.interrupt)
            self._fitted = True
        if warming and self.method.warmup_trains == "tables":
            return
        terms = self._terms(objective, warming=warming)
        self.figures.with_margins = terms.margins is not None
        for _ in range(self.method.local_epochs):
            self._epoch(generator, terms)
        self.model.encoder.finish_training()

    def arrays(self) -> dict[str, Float32]:
        """What clients with this model can exchange, as it is now, on the CPU."""
        return copy_named(self.model, (spec.name for spec in self._exchange.tensors(self.method)))

    def measure(self, name: str) -> tuple[float, ...]:
        """The numbers of a measure, by its name in MEASURES."""
        return MEASURES[name](self)

    def generator(self, purpose: str, *, once_a_run: bool = False) -> np.random.Generator:
        """Random numbers for noise on what leaves: see `seed_noise`."""
        return seed_noise(self.shard.digest, self.moment, purpose, once_a_run=once_a_run)

    def torch_generator(self, purpose: str) -> torch.Generator:
        """One stream a run, client, round and purpose: a round that is run again draws the same."""
        return torch.Generator().manual_seed(seed_draws(self.shard.name, self.moment, purpose))

    def _terms(self, objective: Objective, *, warming: bool) -> ObjectiveTerms:
        margins = weights = None
        if objective.bias_aware and not warming and self.method.margin_strength > 0.0:
            updated = self.received.scalars.get("margin")
            method = self.method
            margins = Margins(self.tables, method.margin_strength, method.refinement, updated, method.margin_reading)
        if objective.group_weights != EQUAL_WEIGHTS:
            weights = torch.tensor(objective.group_weights, device=self.device)[self.activity]
        return ObjectiveTerms(objective, margins, weights)

    def _epoch(self, generator: torch.Generator, terms: ObjectiveTerms) -> None:
        only, penalty = terms.objective.only, terms.objective.penalty
        optimiser = self._optimisers.setdefault(only, build_optimiser(self.model, self.method, only))
        losses, saturated = StepValues(self.device), StepValues(self.device)
        for batch in self.interrupt.each(self.batches.epoch(generator)):
            name = terms.objective.loss
            loss, share = pair_loss(self.model, batch, self.method, terms.margins, name, terms.weights)
            loss = loss if penalty is None else loss + self._penalised(penalty)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if self.method.decay and "embedding".startswith(only):
                self.model.encoder.pull_to_start(self.method.decay * self.method.learning_rate)
            losses.add(loss)
            saturated.add(share)
        self.figures.loss, self.figures.saturated = losses.mean(), saturated.mean()

    def _penalised(self, penalty: Penalty) -> Tensor:
        if self._received_tensors is None:  # once a round, not once a batch
            self._received_tensors = tensors_of(self.received, self.device)
        value: Tensor = penalty(dict(self.model.named_parameters()), self._received_tensors)
        return value


def rows_of_shard(shard: Shard) -> ShardRows:
    """Its users and items."""
    prints = print_users(shard.train, np.arange(len(shard.item_ids)))
    return ShardRows(shard.user_ids, shard.item_ids, shard.catalogue, prints)


def carry_training(training: LocalTraining, trained: Mapping[str, Tensor], old: ShardRows) -> bool:
    """Take over what was trained on a shard with the rows `old`; False, and nothing changed, where that is no such
    model, or of another catalogue.

    Users and items that both shards have keep their rows. Others begin where a run would begin, but users, and those
    whose new items no graph tells the model of, begin as a basket of their items would.
    """
    model, encoder, new = training.model, training.model.encoder, rows_of_shard(training.shard)
    kinds, matched = encoder.row_kinds, match_rows(old, new)
    if old.catalogue != new.catalogue or not are_alike(model, kinds, trained):
        return False
    carry_plain(model, kinds, trained)
    encoder.finish_training()
    encoder.begin_beside(trained["embedding"], matched["nodes"])
    carry_rows(model, kinds, trained, matched)
    if not encoder.begins_at_filter:
        strangers = changed_users(old, new, matched, training.shard.train)
        if encoder.sees_new_edges:
            strangers = np.setdiff1d(strangers, matched["users"].new)
        _begin_as_baskets(encoder, training.shard.train, strangers)
    return True


@torch.no_grad()
def _begin_as_baskets(encoder: Encoder, interactions: sparse.csr_array, users: Rows) -> None:
    if not len(users):
        return
    encoder.embedding[torch.from_numpy(users)] = encoder.embed_baskets(sparse.csr_array(interactions[users]))
