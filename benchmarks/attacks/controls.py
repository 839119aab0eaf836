"""Leaks that are planted, so that an attack that finds nothing elsewhere means something."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.attacks.attack import Blocks
from benchmarks.attacks.silo import Mode, Release
from benchmarks.attacks.views import Transcripts
from client_service.training.item_trainer import ItemTrainer
from shared.method.parameters import Parameters

HIDING_PLACE = "predictive.hidden.bias"


def hiding_place_features(seen: Transcripts, parts: Mapping[str, slice]) -> Blocks:
    """How far the tensor in which a leak is planted has moved, (S, R d). Only sizes: the signs of a silo's basis are
    arbitrary."""
    place = parts[HIDING_PLACE]
    moved = np.abs(seen.sent[..., place].astype(np.float64) - seen.received[..., place])
    return {"hiding place": moved.reshape(len(moved), -1)}


def plant_embedding(user: str, weight: float) -> Mode:
    """A client whose code was changed: it adds the front of one user's embedding to a bias that it may send. The gate
    lets it through, as names, shapes and types are what was declared. An embedding's entries are of order one."""

    def release_embedding(training: ItemTrainer, received: Parameters, made: Parameters) -> Parameters:
        del received
        row = training.shard.user_row(user)
        if row is None:
            return made
        bias = made.arrays[HIDING_PLACE]
        embedding = training.model.encoder.embedding[row].detach().numpy()[: len(bias)]
        hidden = np.asarray(bias + weight * embedding, dtype=np.float32)
        return Parameters({**made.arrays, HIDING_PLACE: hidden}, made.scalars)

    def begin_run(secret: np.random.Generator) -> Release:
        del secret
        return release_embedding

    return begin_run
