"""Generated silo for the guard: its folder, and its first model from Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.federation.training_run import TrainingRun
from client_service.serving.model_server import ModelServer
from client_service.tasks.items import ITEMS
from client_service.tasks.task import RunContext
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.method.tensors import initial_parameters, mlp_specification
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.datasets.synthetic import generate_dataset
from simulation.partitioning.partition import partition_dataset, write_partition

NAME = "client-1"
METHOD: MethodSettings = method_settings()
CPU = torch.device("cpu")
MIB = 1 << 20


@dataclass(frozen=True)
class GeneratedSilo:
    """Generated silo.

    shard: folder with its Parquet files. state: state directory of a client with a key and a model.
    """

    shard: Path
    state: Path


def make_silo(folder: Path, users: int = 2000, items: int = 1200) -> GeneratedSilo:
    """Creates one silo with the whole of a generated data set."""
    dataset = generate_dataset(0, users=users, items=items)
    parts = partition_dataset(dataset, clients=1, method="random", seed=0)
    (shard,) = write_partition(dataset, parts, folder / "shards")
    keep_first_model(shard, folder / "state")
    ensure_key_pair(NAME, folder / "state")
    return GeneratedSilo(shard, folder / "state")


def keep_first_model(shard_folder: Path, state: Path) -> Shard:
    """Fits a closed-form model from Parquet and stores it, ready to be served."""
    shard = load_shard(shard_folder)
    place = RunContext(NAME, "run-1", 0, METHOD, state / "model")
    part = TrainingRun(place, ITEMS, shard, ModelServer(), CPU)
    part.begin(Parameters(initial_parameters(mlp_specification(METHOD), 0, exact=True)), 0)
    return shard


def matrix_mib(shard: Shard) -> float:
    """Returns the MiB of one float32 per pair of user and item."""
    users, items = shard.train.shape
    return 4 * users * items / MIB
