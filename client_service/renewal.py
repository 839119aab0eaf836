"""A shard that has changed since a model was kept -> the model at which training on it would start, kept and served.

No run is needed for it, and nothing leaves the silo: it is computed from the shard, and from the common basis where the
kept model used one. The next run begins as it would without it, by the same choices.
"""

from __future__ import annotations

from typing import Any

import torch

from client_service.basis.storage import load_basis
from client_service.best_model import as_kept
from client_service.learning.interrupt import Interrupt
from client_service.logs import LOGGER
from client_service.run_place import basis_folder, models_folder
from client_service.serving.checkpoint import ModelHead, read_head, save_model
from client_service.serving.served import Served
from client_service.settings import ClientSettings
from client_service.tasks.task import Place, Task, TaskShard

REFRESH = "refresh"  # in the place of a run's name; no run is called so


def renew_model(
    settings: ClientSettings, task: Task[Any, Any], shard: TaskShard, device: torch.device, interrupt: Interrupt
) -> Served | None:
    """None where no model is kept, where the kept one is of this shard, or where training starts at nothing that could
    be served. The old model's files are gone once the new one is there."""
    folder = models_folder(settings)
    before = read_head(folder)
    if before is None or before.shard == shard.digest or before.start is None:
        return None
    basis = load_basis(basis_folder(settings), before.basis) if before.basis else None
    place = Place(settings.name, REFRESH, 0, before.method, folder, before.kind, settings.cache_directory, basis)
    training, _ = task.begin(place, shard, device, interrupt)
    training.initialise(place.seed)
    number = before.round + 1 if before.run == REFRESH else 1
    head = ModelHead(
        shard=shard.digest,
        run=REFRESH,
        round=number,
        method=place.method,
        kind=place.kind,
        start=training.start,
        recipe=training.recipe,
        basis=training.basis,
        values={},
    )
    served: Served = task.freeze(head.version, training)
    related = head.model_copy(update={"relevance": task.relate(shard, served, interrupt)})
    kept = save_model(folder, served.model, related)
    LOGGER.info("model_renewed", model=head.version)
    return as_kept(served, kept)
