"""Trains a model of items on one shard's interactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from client_service.data.interactions import Shard
from client_service.models.encoder import Encoder
from client_service.models.initial_filter import Filter
from client_service.models.model import Model
from client_service.models.parameter_transfer import (
    RowKind,
    ShardRows,
    changed_users,
    copy_matched_rows,
    copy_shared,
    fingerprint_users,
    match_model,
)
from client_service.models.popularity_angle import PopularityTables
from client_service.models.ranker import Rows
from client_service.models.score_fusion import Recipe
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.sums.content import ContentStatistics
from client_service.sums.silo_sum import Statistics
from client_service.training.client_measures import MEASURES, comparable_kernels, split_by_activity
from client_service.training.losses import bce, bpr, contrastive
from client_service.training.margins import Margins, fit_tables, is_saturated
from client_service.training.sampling import Batch, PairSampler
from client_service.training.start_choice import Choice, build_start_model
from client_service.training.trainer import Figures, Trainer
from client_service.training.training_state import StepValues
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum
from shared.strategies.local_client import PLAIN, Loss, Objective, Shrinkage

MLPS = ("pooling.", "predictive.")


def group_parameters(model: Model, method: MethodSettings, only: str = "") -> list[dict[str, Any]]:
    """Groups parameters by learning rate: embeddings and kernels, and both MLPs.

    only: those alone whose name starts so.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if name.startswith(only)]
    private = [parameter for name, parameter in named if not name.startswith(MLPS)]
    mlps = [parameter for name, parameter in named if name.startswith(MLPS)]
    rates = ((private, method.learning_rate), (mlps, method.mlp_learning_rate))
    return [{"params": members, "lr": rate} for members, rate in rates if members]


def pair_loss(
    model: Model,
    batch: Batch,
    method: MethodSettings,
    margins: Margins | None,
    loss: Loss = "",
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the loss of one batch and the share of its saturated positives.

    The loss is Eq. 9, BPR or BCE; "" is the one of the settings. Saturated: the angle is at pi, without gradient.
    `weights` (M,) scale the pairs of each user, with BPR and BCE.
    """
    leave_one_out, name = method.leave_one_out, loss or method.loss
    positive, negatives = model.scores(batch.users, batch.items, batch.negatives, leave_one_out=leave_one_out)
    if name != "bc":
        chosen = bpr if name == "bpr" else bce
        by_row = None if weights is None else weights[batch.users]
        return chosen(positive, negatives, batch.excluded, by_row), torch.zeros(())
    bare = torch.tanh(positive)
    widened, level = (bare, is_saturated(bare)) if margins is None else margins.widen(positive, batch)
    value = contrastive(widened, torch.tanh(negatives), batch.excluded, method.temperature)
    return value, level.float().mean().detach()


EQUAL_WEIGHTS = (1.0, 1.0)


@dataclass(frozen=True)
class ObjectiveTerms:
    """Terms of an objective on this shard: margins, and user weights (M,)."""

    objective: Objective
    margins: Margins | None
    weights: Tensor | None


class ItemTrainer(Trainer):
    """Trainer of an encoder and its head on pairs of users and items.

    start: the filter of an exact start; None: the one that validation prefers. recipe: the fusion with the trained
    score; None: the one that validation prefers. basis: the common basis, whose scorers the fusion has too; the
    attribute `basis` is its digest, "" without one. content: the content sums of the other silos; the attribute
    `content` is their digest.
    """

    task = "items"
    shard: Shard
    model: Model
    tables: PopularityTables

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
        basis: Statistics | None = None,
        content: ContentStatistics | None = None,
    ) -> None:
        self.spectrum, self._given, self._basis = spectrum, Choice(start=start, recipe=recipe), basis
        self._content = content
        super().__init__(shard, method, device, interrupt, kind)
        self._basis = None  # which is large; the model has what it needs of it

    def build_model(self) -> Model:
        """Builds a model at its start, by given or by new choices.

        Validation makes the new ones. It is slow.
        """
        shard, method = self.shard, self.method
        others = None if self._content is None else self._content.sums
        self.content = "" if self._content is None else self._content.digest
        start = build_start_model(
            shard, self.spectrum, method, self.kind, self._given, self.interrupt, self._basis, others
        )
        self.basis = self._basis.digest if self._basis is not None else ""
        self.start, self.recipe, self.fusion, self.codes = start.start, start.recipe, start.fusion, start.codes
        self.cold = start.cold
        self.tables = PopularityTables(shard.train, method.width).to(self.device)
        sizes = {"batch_size": method.batch_size, "negatives": method.negatives}
        self.batches = PairSampler(shard.train, device=self.device, **sizes)
        self._fitted = False
        return start.model

    @property
    def anchor(self) -> Float64 | None:
        """Kernel from which this round's divergence is measured."""
        return self.context.anchor

    @cached_property
    def activity(self) -> Tensor:
        """Mask of the users of the more active half, 1 or 0, (M,)."""
        return split_by_activity(self.shard.train).to(self.device)

    @cached_property
    def unseen_items(self) -> Tensor:
        """Marks the items that no user has in training, (N,)."""
        return torch.from_numpy(np.asarray(self.shard.train.sum(0) == 0)).to(self.device)

    def sum_gradients(self) -> tuple[dict[str, Float32], int]:
        """Refuses gradients with SettingsError, because the loss of a pair depends on its batch."""
        words = "expected one that trains, as task 'items' has no loss that is summed over examples"
        raise SettingsError(f"strategy: {words}, got one that sends gradients")

    @property
    def row_kinds(self) -> Mapping[str, RowKind]:
        return self.model.encoder.row_kinds

    @property
    def rows(self) -> ShardRows:
        return list_item_rows(self.shard)

    def initialise(self, seed: int) -> None:
        """Sets all exchangeable parameters to the start of a run with this seed."""
        super().initialise(seed)
        self.model.encoder.finish_training()

    def train(self, objective: Objective = PLAIN) -> None:
        """Runs the round's local epochs.

        In the warm-up the popularity tables are fitted and no margin is used yet.
        """
        if not self.model.encoder.begin_training(objective.only):
            return
        generator = self.torch_generator("train")
        warming = objective.bias_aware and self.context.round <= self.method.warmup(self.context.rounds)
        self.figures = Figures()
        if warming or (objective.bias_aware and not self._fitted):  # a client that joins late has had no warm-up
            self.figures.table_steps = fit_tables(self.tables, self.batches, self.method, generator, self.interrupt)
            self._fitted = True
        if warming and self.method.warmup_trains == "tables":
            return
        terms = self._terms(objective, warming=warming)
        self.figures.with_margins = terms.margins is not None
        for _ in range(self.method.local_epochs):
            self._epoch(generator, terms)
        self.model.encoder.finish_training()

    def measure(self, name: str) -> tuple[float, ...]:
        """Computes a measure by its name in MEASURES."""
        return MEASURES[name](self)

    def comparable_kernels(self) -> tuple[Float64, Float64] | None:
        """Returns the anchor's kernel and the own one, as the divergence compares them.

        None without an anchor.
        """
        return comparable_kernels(self)

    def torch_generator(self, purpose: str) -> torch.Generator:
        """Returns a generator seeded by run, client, round and purpose.

        A round that is run again draws the same.
        """
        return torch.Generator().manual_seed(self.draw_seed(purpose))

    def parameter_groups(self, only: str) -> list[dict[str, Any]]:
        """Groups embeddings and kernels at one rate, and both MLPs at another."""
        return group_parameters(self.model, self.method, only)

    def transfer(self, trained: Mapping[str, Tensor], old: ShardRows) -> bool:
        """Copies parameters trained on another shard; see `Trainer.transfer`.

        Where the encoder begins at no filter, new users, and users whose new items the graph does not show, begin as a
        basket of their items would.
        """
        model, encoder, kinds, new = self.model, self.model.encoder, self.row_kinds, self.rows
        matched = match_model(model, kinds, trained, old, new)
        if matched is None:
            return False
        copy_shared(model, kinds, trained)
        encoder.finish_training()
        encoder.align_with(trained["embedding"], matched["nodes"])
        copy_matched_rows(model, kinds, trained, matched)
        if not encoder.starts_at_filter:
            strangers = changed_users(old, new, matched, self.shard.train)
            if encoder.sees_new_edges:
                strangers = np.setdiff1d(strangers, matched["users"].new)
            _start_from_baskets(encoder, self.shard.train, strangers)
        return True

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
        saturated, objective = StepValues(self.device), terms.objective

        def loss_of(batch: Batch) -> Tensor:
            if objective.taken_negatives:
                batch = replace(batch, excluded=batch.excluded | self.unseen_items[batch.negatives])
            loss, share = pair_loss(self.model, batch, self.method, terms.margins, objective.loss, terms.weights)
            saturated.add(share)
            return loss

        follows = self.method.decay or objective.shrinkage is not None
        after_step = partial(self._follow_step, objective) if follows else None
        self._set_rates(objective)
        self.figures.loss = self.run_epoch(self.batches.epoch(generator), loss_of, objective, after_step)
        self.figures.saturated = saturated.mean()

    def _set_rates(self, objective: Objective) -> None:
        """Sets the optimiser's rates to the objective's multiple of the settings' rates."""
        optimiser = self.take_optimiser(objective.only)
        for group, given in zip(optimiser.param_groups, self.parameter_groups(objective.only), strict=True):
            group["lr"] = objective.rate * given["lr"]

    def _follow_step(self, objective: Objective) -> None:
        if self.method.decay and "embedding".startswith(objective.only):
            self.model.encoder.pull_to_start(self.method.decay * self.method.learning_rate)
        if objective.shrinkage is not None:
            shrink(self.model, objective.shrinkage, objective.rate * self.method.learning_rate)


@torch.no_grad()
def shrink(model: Model, shrinkage: Shrinkage, rate: float) -> None:
    """Shrinks parameters by the proximal step of an L1 norm.

    w <- sign(w) max(|w| - rate strength, 0).
    """
    own = dict(model.named_parameters())
    for name in shrinkage.names:
        own[name].copy_(torch.nn.functional.softshrink(own[name], rate * shrinkage.strength))


def list_item_rows(shard: Shard) -> ShardRows:
    """Returns the rows of a shard's users and items."""
    prints = fingerprint_users(shard.train, np.arange(len(shard.item_ids)))
    return ShardRows(shard.user_ids, shard.item_ids, shard.catalogue, prints)


@torch.no_grad()
def _start_from_baskets(encoder: Encoder, interactions: sparse.csr_array, users: Rows) -> None:
    if not len(users):
        return
    encoder.embedding[torch.from_numpy(users)] = encoder.embed_baskets(sparse.csr_array(interactions[users]))
