"""A trained model -> a copy at rest, from which answers come."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from client_service.learning.local import LocalTraining
from client_service.models.model import Model
from client_service.models.ranker import Ranker
from client_service.serving.answerer import AtRest
from shared.method.parameters import Float32


@dataclass(frozen=True)
class Served(AtRest):
    """A model of users and items. ranker: from it lists come."""

    model: Model
    ranker: Ranker = field(kw_only=True)

    @cached_property
    def directions(self) -> Float32:
        """Item embeddings of length one, (N, q), for items like an item."""
        rows = self.ranker.items.embedding
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)


def freeze(version: str, training: LocalTraining) -> Served:
    """A copy of the parameters; the constant buffers and the fusion, which are large, are shared with the original."""
    model = training.model
    constant = {id(buffer): buffer for buffer in model.buffers()}
    frozen = copy.deepcopy(model, memo=constant).requires_grad_(False)
    frozen.encoder.settle()
    return Served(version, frozen, ranker=frozen.freeze().fused(training.fusion, training.codes))
