"""What a client's process leaves behind that was stopped after it had got a run's first parameters."""

from __future__ import annotations

import torch

from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.shard import Shard, read_shard
from client_service.tasks.items import ITEMS
from client_service.tasks.task import Place
from client_service.training_run import TrainingRun
from shared.method.exchange import mlp_specification
from shared.method.exchanged import Parameters
from shared.method.start import initial_parameters


def keep_first_model(settings: ClientSettings, run: str = "run-1") -> tuple[Shard, Recommender]:
    """The shard, and what served the model that lies in the state directory now."""
    shard = read_shard(settings.shard)
    recommender = Recommender(shard)
    place = Place(settings.name, run, 0, settings.method, settings.state_directory / "model")
    part = TrainingRun(place, ITEMS, shard, recommender, torch.device("cpu"))
    part.begin(Parameters(initial_parameters(mlp_specification(settings.method), 0, exact=False)), 0)
    return shard, recommender
