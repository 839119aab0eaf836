"""A shard that has changed since a model was kept -> the model that answers from it until the next run.

No run is needed for it, and nothing leaves the silo. There are up to two candidates:

- the model at which training on the shard would start, computed from the shard, and from the common basis where the
  kept model used one. What validation chose for the kept model is taken over while the shard has hardly changed:
  choosing takes longer than computing. A model that starts at random has none that could be served.
- the kept model with what training has given it, taken over by the ids of users and items. It knows nothing of later
  interactions but what the shard's graph tells it.

Validation chooses between them. After an erasure the first alone is one, where there is one, because the erased have
taught the other. The next run chooses and trains for itself, as it would without a refresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from client_service.basis.storage import load_basis
from client_service.best_model import as_kept
from client_service.learning.interrupt import Interrupt
from client_service.logs import LOGGER
from client_service.run_place import basis_folder
from client_service.serving.answerer import AtRest
from client_service.serving.checkpoint import REFRESH, ModelHead, load_tensors, read_head
from client_service.serving.numbers import next_number
from client_service.serving.shard_rows import kept_rows
from client_service.serving.versions import keep_version
from client_service.settings import ClientSettings
from client_service.tasks.task import Place, Task, TaskShard, Training
from shared.errors import DataError

CHANGED = 0.1  # share of the training pairs by which their number may differ before validation chooses anew
SEED = 0


@dataclass(frozen=True)
class Renewed:
    """A model at rest, and what it belongs to; not kept yet."""

    served: AtRest
    head: ModelHead


@dataclass(frozen=True)
class ModelRenewal:
    """Of one silo's kept models for a shard."""

    settings: ClientSettings
    task: Task[Any, Any]
    shard: TaskShard
    device: torch.device
    interrupt: Interrupt

    def renew(self, *, erased: bool) -> Renewed | None:
        """What is to answer in the place of the served model. Slow. None where no model is kept, where the kept one is
        of this shard, or where nothing of it could be served.

        erased: somebody's interactions are gone from the shard, or may be: nothing is taken over that they have taught,
        where it can be done without, and validation chooses whatever the shard's size.
        """
        before = read_head(self.settings.models_directory)
        if before is None or before.shard == self.shard.digest:
            return None
        candidates = [one for one in self._candidates(before, erased=erased) if one is not None]
        if len(candidates) > 1:  # judging takes a third as long as computing one
            candidates = [max((self._judge(one) for one in candidates), key=self._preference)]
        return self._relate(candidates[0]) if candidates else None

    def take_over(self, before: ModelHead, after: ModelHead) -> Renewed | None:
        """A kept model of another shard on this one, with all that both have, as `after`; None where that cannot be."""
        training = self._rebuild(after)
        found = self._carry(before, training, after)
        return None if found is None else self._relate(self._judge(found))

    def keep(self, renewed: Renewed) -> AtRest:
        """Make it the served one, also after a restart. `keep_version` says what becomes of the others."""
        settings, rows = self.settings, self.task.rows(self.shard)
        refitted = None
        if settings.fit_everything:  # it was judged without held-out data, and answers with them
            refit = self.task.refit(self.shard, settings.models_directory, self.device)
            refitted = refit(renewed.head, dict(renewed.served.model.named_parameters()))
        kept = keep_version(settings.models_directory, renewed.served.model, renewed.head, rows, settings.kept_models)
        LOGGER.info("model_renewed", model=kept.version, carried=kept.carried)
        return as_kept(renewed.served if refitted is None else refitted, kept)

    def _candidates(self, before: ModelHead, *, erased: bool) -> Iterator[Renewed | None]:
        pairs, folder = self.task.count(self.shard).edges, self.settings.models_directory
        fresh = {"shard": self.shard.digest, "run": REFRESH, "number": 0, "values": {}, "carried": False}
        head = before.model_copy(update={**fresh, "round": next_number(folder)})
        if before.start is None:
            yield self._carry(before, self._rebuild(head), head)
            return
        anew = erased or abs(pairs - before.chosen_for) > CHANGED * before.chosen_for
        training = self._begin_anew(before) if anew else self._rebuild(head)
        chosen = {"start": training.start, "recipe": training.recipe, "basis": training.basis, "chosen_for": pairs}
        yield self._at_start(training, head.model_copy(update=chosen) if anew else head)
        if before.is_trained and not erased:
            yield self._carry(before, self._rebuild(head) if anew else training, head)

    def _at_start(self, training: Training, head: ModelHead) -> Renewed:
        training.initialise(SEED)
        return Renewed(self.task.freeze(head.version, training), head)

    def _carry(self, before: ModelHead, training: Training, head: ModelHead) -> Renewed | None:
        """None where the kept model, or the ids of its shard's rows, cannot be read, or are of another kind."""
        folder = self.settings.models_directory
        try:
            tensors, rows = load_tensors(folder, before), kept_rows(folder, before.shard)
        except DataError as error:
            LOGGER.warning("model_not_carried", reason=str(error))
            return None
        if tensors is None or rows is None or not self.task.carry(training, tensors, rows):
            return None
        carried = head.model_copy(update={"carried": True})
        return Renewed(self.task.freeze(carried.version, training), carried)

    def _rebuild(self, head: ModelHead) -> Training:
        settings = self.settings
        training: Training = self.task.rebuild(head, self.shard, settings.models_directory, self.device)
        return training

    def _begin_anew(self, before: ModelHead) -> Training:
        """As the first round of a run would find it."""
        settings = self.settings
        basis = load_basis(basis_folder(settings), before.basis) if before.basis else None
        folder, cache = settings.models_directory, settings.cache_directory
        place = Place(settings.name, REFRESH, SEED, before.method, folder, before.kind, cache, basis)
        training: Training = self.task.begin(place, self.shard, self.device, self.interrupt)[0]
        return training

    def _judge(self, candidate: Renewed) -> Renewed:
        """With its figures on validation items."""
        measures = self.task.judge(self.shard, candidate.served, self.interrupt)
        head = candidate.head.model_copy(update={"values": dict(measures.values)})
        return Renewed(candidate.served, head)

    def _preference(self, judged: Renewed) -> tuple[float, bool]:
        """Of equal ones, and where nothing can be judged, the one at which training would start."""
        return judged.head.values[self.task.primary], not judged.head.carried

    def _relate(self, best: Renewed) -> Renewed:
        """With what its scores mean."""
        relevance = self.task.relate(self.shard, best.served, self.interrupt)
        return Renewed(best.served, best.head.model_copy(update={"relevance": relevance}))
