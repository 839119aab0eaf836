"""Scores visits by a frozen session model, in the process that trains.

The model is evaluated, kept, and compiled for answers there.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from client_service.data.prefixes import Prefixes
from client_service.model_store.model_server import FrozenModel
from client_service.models.sequence.srgnn import SRGNN
from client_service.training.session_trainer import SessionTrainer
from client_service.training.transition_scores import VisitScores, network_share, probabilities
from shared.method.parameters import Float32


@dataclass(frozen=True)
class ServedSessions(FrozenModel):
    """Frozen session model, with optional transitions.

    own: numbers of the rows of its item table that belong to the shard's items, (N,). vectors: these rows, (N, d).
    transitions: scores that the network is fused with, or None. share: the network's share in the probability of an
    item.
    """

    model: SRGNN
    own: Tensor = field(kw_only=True)
    vectors: Tensor = field(kw_only=True)
    transitions: VisitScores | None = field(default=None, kw_only=True)
    share: float = field(default=1.0, kw_only=True)

    def score(self, examples: Prefixes) -> Float32:
        """Scores the shard's items after each prefix, (B, N), on the CPU.

        With transitions, the scores are logarithms of probabilities.
        """
        if self.transitions is None:
            return self.score_by_model(examples)
        found = self.transitions.score(examples)
        if self.share > 0.0:
            found = self.share * probabilities(self.score_by_model(examples)) + (1.0 - self.share) * found
        mixed: Float32 = np.log(np.maximum(found, np.float32(1e-30)))
        return mixed

    @torch.no_grad()
    def score_by_model(self, examples: Prefixes) -> Float32:
        """Scores the shard's items by the network alone, (B, N)."""
        clicks, lengths = (torch.from_numpy(part).to(self.own.device) for part in examples.pad())
        found: Float32 = self.model.score(*self.model.encode(self.own[clicks], lengths), self.vectors).cpu().numpy()
        return found


def freeze_sessions(version: str, training: SessionTrainer) -> ServedSessions:
    """Copies the model as it is now, and chooses the network's share."""
    model = copy.deepcopy(training.model).requires_grad_(False)
    table = model.item.table.detach()
    own = torch.from_numpy(training.own).to(table.device)
    vectors = table if len(own) == len(table) else table[own]
    served = ServedSessions(version, model, own=own, vectors=vectors)
    known = training.transitions
    if known is None:
        return served

    def trained(examples: Prefixes) -> Float32:
        return probabilities(served.score_by_model(examples))

    share = network_share(training.shard, trained, known.score, training.interrupt) if training.is_trained else 0.0
    return replace(served, transitions=known, share=share)
