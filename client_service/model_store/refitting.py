"""Refits a model, evaluated on held-out data, on all of the silo's data.

Nothing is chosen here: filter, recipe, best round and the meaning of scores stay as held-out data have determined
them. Closed forms of the graph are computed from all pairs. Trained parameters are taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from client_service.data.interactions import Shard
from client_service.model_store.model_files import ModelHead, ServedItems, copy_parameters, freeze
from client_service.models.initial_filter import build_start
from client_service.models.parameter_transfer import MatchedRows
from client_service.runtime.logs import LOGGER
from client_service.sums.content import ContentStatistics
from client_service.sums.silo_sum import Statistics
from client_service.sums.storage import FOLDER, load_basis
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.start_choice import common_start
from shared.errors import DataError

EVERYTHING = "everything"  # first part of the name of the folder with results from all pairs; the digest follows
SHORT = 16


def load_model_basis(folder: Path, head: ModelHead) -> Statistics | None:
    """Loads the common basis of a kept model; None for a model without one.

    folder: the folder of models. DataError for a missing basis, without which the model would rank otherwise.
    """
    basis = load_basis(folder.parent / FOLDER, head.basis) if head.basis else None
    if head.basis and basis is None:
        raise DataError(f"{folder}: expected the common basis {head.basis[:SHORT]} of the kept model, got none")
    return basis


def load_model_content(folder: Path, head: ModelHead) -> ContentStatistics | None:
    """Loads the content sums of a kept model; None for a model without them.

    folder: the folder of models. DataError for missing ones, without which the model would rank otherwise.
    """
    found = load_basis(folder.parent / FOLDER, head.content) if head.content else None
    if head.content and not isinstance(found, ContentStatistics):
        raise DataError(f"{folder}: expected content sums {head.content[:SHORT]}, which the model needs, got none")
    return found if isinstance(found, ContentStatistics) else None


class Refit:
    """Refits the kept models of one shard on all of its pairs.

    folder: the folder of models. The closed forms are computed once for all rounds of a run.
    """

    def __init__(self, shard: Shard, folder: Path, device: torch.device) -> None:
        self._shard, self._folder, self._device = shard, folder, device
        self._begun: tuple[ModelHead, ItemTrainer, Tensor] | None = None

    def __call__(self, head: ModelHead, trained: Mapping[str, Tensor]) -> ServedItems | None:
        """Refits the model of a head on all pairs, with its trained parameters.

        This is slow. trained: the parameters in the model's file. None if these do not fit the graph of all pairs,
        which may have fewer frequencies than that of the training pairs, if there are a few users who have nearly all
        items. The model that was evaluated on held-out data answers then.
        """
        training, start = self._begin(head)
        model, encoder = training.model, training.model.encoder
        if not copy_parameters(trained, model):
            LOGGER.warning("model_not_refitted", reason="its parameters do not fit the graph of all pairs")
            return None
        with torch.no_grad():
            encoder.finish_training()
            if encoder.starts_at_filter:
                encoder.embedding.copy_(start)
                if head.is_trained:
                    before = self._start_before(head, training)
                    encoder.align_with(before, _all_rows(before))
                    encoder.embedding.add_(trained["embedding"].to(start) - before.to(start))
        return freeze(head.version, training)

    def _begin(self, head: ModelHead) -> tuple[ItemTrainer, Tensor]:
        """Builds a model of the head's choices on all pairs, with its initial embeddings."""
        known = self._begun
        if known is None or not _have_same_choices(known[0], head):
            folder = self._folder / f"{EVERYTHING}-{self._shard.digest[:SHORT]}"
            spectrum = cached_spectrum(self._shard.with_all_data, head.method.cutoff, folder)
            # A small graph has fewer frequencies than the cut-off, and the trained model has one weight for each.
            trained_on = cached_spectrum(self._shard, head.method.cutoff, self._folder)
            spectrum = spectrum.cut(len(trained_on.singular))
            training = ItemTrainer(
                self._shard.with_all_data,
                spectrum,
                head.method,
                self._device,
                head.start,
                kind=head.kind,
                recipe=head.recipe,
                basis=load_model_basis(self._folder, head),
                content=load_model_content(self._folder, head),
            )
            known = self._begun = (head, training, training.model.encoder.embedding.detach().clone())
        return known[1:]

    def _start_before(self, head: ModelHead, training: ItemTrainer) -> Tensor:
        """Computes the initial embeddings of the model's training, (M + N, q).

        They follow from the training pairs alone.
        """
        assert head.start is not None, "embeddings that begin at a filter have one"
        shard, basis = self._shard, load_model_basis(self._folder, head)
        frequencies = common_start(basis, shard, head.method)
        spectrum = frequencies or cached_spectrum(shard, head.method.cutoff, self._folder)
        start = build_start(head.start, spectrum, shard.train)
        rows = np.concatenate([start.users, start.items]) * start.size
        found = torch.zeros_like(training.model.encoder.origin)
        found[:, : rows.shape[1]] = torch.from_numpy(rows).to(found)
        return found


CHOICES = ("method", "kind", "start", "recipe", "basis", "content")


def _have_same_choices(one: ModelHead, other: ModelHead) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in CHOICES)


def _all_rows(embedding: Tensor) -> MatchedRows:
    rows = np.arange(len(embedding))
    return MatchedRows(rows, rows)
