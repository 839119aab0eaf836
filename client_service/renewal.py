"""A shard that has changed since a model was kept -> the model at which training on it would start, kept and served.

No run is needed for it, and nothing leaves the silo: it is computed from the shard, and from the common basis where the
kept model used one. What validation chose for the kept model is taken over while the shard has hardly changed: choosing
takes longer than computing. The next run chooses for itself, as it would without a refresh.
"""

from __future__ import annotations

from typing import Any

import torch

from client_service.basis.storage import load_basis
from client_service.best_model import as_kept
from client_service.learning.interrupt import Interrupt
from client_service.logs import LOGGER
from client_service.run_place import basis_folder
from client_service.serving.answerer import AtRest
from client_service.serving.checkpoint import ModelHead, read_head
from client_service.serving.versions import keep_version
from client_service.settings import ClientSettings
from client_service.tasks.task import Place, Task, TaskShard, Training

CHANGED = 0.1  # share of the training pairs by which their number may differ before validation chooses anew
SEED = 0
REFRESH = "refresh"  # in the place of a run's name; no run is called so


def renew_model(
    settings: ClientSettings,
    task: Task[Any, Any],
    shard: TaskShard,
    device: torch.device,
    interrupt: Interrupt,
    *,
    choose: bool = True,
) -> AtRest | None:
    """None where no model is kept, where the kept one is of this shard, or where training starts at nothing that could
    be served. The old model's files are gone once the new one is there.

    choose: validation chooses whatever the shard's size. It must where somebody was erased, whose data chose too.
    """
    folder = settings.models_directory
    before = read_head(folder)
    if before is None or before.shard == shard.digest or before.start is None:
        return None
    pairs = task.count(shard).edges
    head = before.model_copy(
        update={
            "shard": shard.digest,
            "run": REFRESH,
            "round": before.round + 1 if before.run == REFRESH else 1,
            "values": {},
        }
    )
    if choose or abs(pairs - before.chosen_for) > CHANGED * before.chosen_for:
        training = _begin_anew(settings, task, shard, device, interrupt, before)
        chosen = {"start": training.start, "recipe": training.recipe, "basis": training.basis, "chosen_for": pairs}
        head = head.model_copy(update=chosen)
    else:
        training = task.rebuild(head, shard, folder, device)
    training.initialise(SEED)
    served: AtRest = task.freeze(head.version, training)
    related = head.model_copy(update={"relevance": task.relate(shard, served, interrupt)})
    kept = keep_version(folder, served.model, related, settings.kept_models)
    LOGGER.info("model_renewed", model=head.version)
    return as_kept(served, kept)


def _begin_anew(
    settings: ClientSettings,
    task: Task[Any, Any],
    shard: TaskShard,
    device: torch.device,
    interrupt: Interrupt,
    before: ModelHead,
) -> Training:
    """As the first round of a run would find it."""
    basis = load_basis(basis_folder(settings), before.basis) if before.basis else None
    folder, cache = settings.models_directory, settings.cache_directory
    place = Place(settings.name, REFRESH, SEED, before.method, folder, before.kind, cache, basis)
    training: Training = task.begin(place, shard, device, interrupt)[0]
    return training
