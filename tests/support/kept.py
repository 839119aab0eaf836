"""What a client's process leaves behind that was stopped after it had got a run's first parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from client_service.compilation.item_publisher import ItemPublisher
from client_service.compiled.publication import SERVING
from client_service.data.interaction_files import load_shard, lock_shard, save_shard
from client_service.data.interactions import Shard
from client_service.event_log.log_store import MergeResult
from client_service.event_log.shard_update import merge_log_into_shard
from client_service.event_log.store import EventStore
from client_service.federation.training_run import TrainingRun
from client_service.model_store.model_files import ServedItems
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS, answering_shard
from client_service.tasks.task import RunContext
from shared.method.parameters import Parameters
from shared.method.tensors import initial_parameters, mlp_specification
from tests.support.compiled import TrainedRecommender


def keep_first_model(
    settings: ClientSettings, run: str = "run-1", *, published: bool = False
) -> tuple[Shard, TrainedRecommender]:
    """The shard, and what served the model that lies in the state directory now. published: with its lists, for a
    server that no trainer is beside."""
    shard = load_shard(settings.shard)
    everything = settings.fit_everything
    recommender = TrainedRecommender(answering_shard(settings, shard))
    models = settings.state_directory / "model"
    place = RunContext(settings.name, run, 0, settings.method, models, fit_everything=everything)
    part = TrainingRun(place, ITEMS, shard, recommender, torch.device("cpu"))
    part.begin(Parameters(initial_parameters(mlp_specification(settings.method), 0, exact=False)), 0)
    if published:
        publish_model(settings, shard, recommender.served)
    return shard, recommender


def publish_model(settings: ClientSettings, shard: Shard, served: ServedItems | None) -> None:
    """What a trainer publishes, with all lists."""
    publisher = ItemPublisher(answering_shard(settings, shard), settings.state_directory / SERVING, 1)
    publisher.serve_model(served)
    if served is not None:
        publisher._job.join()


def absorb(settings: ClientSettings, store: EventStore, listed: Sequence[str] | None = None) -> MergeResult:
    """The log is in the silo's shard, which is written; and still in the log."""
    with lock_shard(settings.shard) as before:
        absorbed = merge_log_into_shard(before, store, settings.least_rating, listed)
        save_shard(settings.shard, absorbed.after)
    return absorbed


def absorb_and_forget(settings: ClientSettings, store: EventStore, listed: Sequence[str] | None = None) -> MergeResult:
    """Likewise, and what stays in the log is what the shard has not got."""
    absorbed = absorb(settings, store, listed)
    store.delete_absorbed(absorbed.batch, absorbed.after.lists_digest, absorbed.kept)
    return absorbed
