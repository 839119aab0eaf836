"""Trainer of a session model on one silo's clicks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from client_service.data.prefixes import Int64, Prefixes
from client_service.data.sessions import SessionShard, shuffle_batches
from client_service.models.parameter_transfer import RowKind, ShardRows
from client_service.models.sequence.srgnn import SRGNN
from client_service.models.sequence.tagnn import TAGNN
from client_service.sums.transitions import Transitions
from client_service.training.trainer import Trainer
from client_service.training.transition_scores import VisitScores, score_visits
from shared.errors import ProtocolError
from shared.method.parameters import Float32, Parameters
from shared.method.tensors import ITEM_TABLE

MODELS: dict[str, type[SRGNN]] = {"srgnn": SRGNN, "tagnn": TAGNN}


class SessionTrainer(Trainer):
    """Trainer of SR-GNN and TAGNN by the cross entropy of the next click.

    There are no private parameters: the sessions and the optimiser's state stay in the silo. The model
    holds the rows of the item table that are trained: the silo's own items', or the whole catalogue's. The other rows
    leave as they came: an optimiser with weight decay would draw them to 0, and the mean of all silos with them.

    own: the rows of the model that are the shard's items', in their order, (N,). transitions: what the model is fused
    with, where transitions of all silos were summed.
    """

    task = "sessions"
    shard: SessionShard
    model: SRGNN
    transitions: VisitScores | None = None

    def add_sums(self, known: Transitions) -> None:
        """Scores with the transitions of all silos too, from now on; slow."""
        self.basis = known.digest
        if self.method.fusion:
            self.transitions = score_visits(self.shard, known, self.interrupt)

    @property
    def is_trained(self) -> bool:
        """Whether the network is trained; else transitions alone are served."""
        return str(self.method.strategy.get("train", True)).lower() != "false"

    @property
    def holds_catalogue(self) -> bool:
        """Whether rows of all items of the catalogue are trained, or the silo's own."""
        return self.method.sessions.candidates == "catalogue"

    @property
    def row_kinds(self) -> Mapping[str, RowKind]:
        return {} if self.holds_catalogue else {ITEM_TABLE: "items"}

    @property
    def rows(self) -> ShardRows:
        return list_session_rows(self.shard)

    def build_model(self) -> SRGNN:
        """Builds a network over the item rows that are trained."""
        whole = self.holds_catalogue
        self._rows = np.arange(self.method.catalogue) if whole else self.shard.places
        self.own = self.shard.places if whole else np.arange(len(self.shard.places))
        self._examples = self.shard.train.renumber(self.own)
        return MODELS[self.kind](len(self._rows), self.method.width)

    def switch_shard(self, shard: SessionShard) -> None:
        """Switches to another shard; its parameters are loaded afterwards.

        Optimiser states are dropped.
        """
        self.shard = shard
        self.model = self.build_model().to(self.device)
        self._optimisers.clear()

    def select_held(self, received: Parameters) -> Parameters:
        """Selects the trained rows of the received item table, which is stored whole.

        Raises ProtocolError for a table of another shape.
        """
        arrays, shape = dict(received.arrays), (self.method.catalogue, self.method.width)
        if ITEM_TABLE in arrays:
            self._table = np.asarray(arrays[ITEM_TABLE])
            if self._table.shape != shape:
                raise ProtocolError(f"{ITEM_TABLE}: expected shape {list(shape)}, got {list(self._table.shape)}")
            arrays[ITEM_TABLE] = self._table[self._rows]
        return Parameters(arrays, received.scalars)

    def draw_batches(self, generator: np.random.Generator) -> Iterator[Int64]:
        """Yields batches of examples of similar lengths, which need little padding."""
        return shuffle_batches(self._examples.lengths, self.method.batch_size, generator)

    def find_loss(self, rows: Int64) -> Tensor:
        """Computes the cross entropy over the model's items."""
        clicks, lengths, targets = self._batch(self._examples.select(rows))
        return nn.functional.cross_entropy(self.model(clicks, lengths), targets)

    def arrays(self) -> dict[str, Float32]:
        """Returns the exchangeable arrays; item rows that are not trained stay as received."""
        found = super().arrays()
        if len(self._rows) < self.method.catalogue:
            own, found[ITEM_TABLE] = found[ITEM_TABLE], self._table.copy()
            found[ITEM_TABLE][self._rows] = own
        return found

    def parameter_groups(self, only: str) -> list[dict[str, Any]]:
        """Groups parameters with the weight decay of sessions."""
        decay = self.method.sessions.weight_decay
        return [{**group, "weight_decay": decay} for group in super().parameter_groups(only)]

    def take_optimiser(self, only: str) -> torch.optim.Optimizer:
        """Returns the optimiser of the round before, with this round's learning rate."""
        optimiser = super().take_optimiser(only)
        for group in optimiser.param_groups:
            group["lr"] = self._rate()
        return optimiser

    def _rate(self) -> float:
        """Computes the learning rate of this round: a tenth after each `rate_step` rounds."""
        step = self.method.sessions.rate_step
        return self.method.learning_rate * (0.1 ** ((self.context.round - 1) // step) if step else 1.0)

    def _batch(self, examples: Prefixes) -> tuple[Tensor, Tensor, Tensor]:
        clicks, lengths = examples.pad()
        clicks_, lengths_, targets = map(torch.from_numpy, (clicks, lengths, examples.targets))
        return clicks_.to(self.device), lengths_.to(self.device), targets.to(self.device)


def list_session_rows(shard: SessionShard) -> ShardRows:
    """Returns the rows of a shard's items; a visit belongs to no user."""
    return ShardRows((), shard.item_ids, shard.catalogue)
