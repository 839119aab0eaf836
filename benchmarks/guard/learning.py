"""Measurements of a first model from Parquet, and of an epoch of training."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from benchmarks.guard.measuring import PreparedWork, Preparing, TimedWork, matrix_product
from benchmarks.guard.silo import CPU, METHOD, GeneratedSilo, keep_first_model, matrix_mib
from client_service.data.interaction_files import load_shard
from client_service.training.item_trainer import ItemTrainer
from client_service.training.start_choice import COMMON_START
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification
from shared.strategies.local_client import Objective

PRODUCT, MATRIX = "a product of two 768 x 768 matrices", "a float32 for each user and item"
PAIRS = 1000  # unit of an epoch's time
ROUNDS = 15


@asynccontextmanager
async def prepare_first_model(silo: GeneratedSilo, folder: Path) -> Preparing:
    """Prepares the fit of a first model, without caches between repetitions."""
    numbers = count()

    async def work() -> None:
        keep_first_model(silo.shard, folder / str(next(numbers)))

    timed = TimedWork("first model", work, matrix_product(), PRODUCT, repetitions=3)
    yield PreparedWork((timed,), matrix_mib(load_shard(silo.shard)), MATRIX)


@asynccontextmanager
async def prepare_epoch(silo: GeneratedSilo, folder: Path) -> Preparing:
    """Prepares an epoch after the warm-up, so that the margin is on."""
    del folder
    training = _begin_training(silo)
    objective, pairs = Objective(bias_aware=True), training.shard.train.nnz
    training.train(objective)
    training.context = RoundContext(round=ROUNDS, rounds=ROUNDS, seed=0)

    async def work() -> None:
        training.train(objective)

    name = f"{PAIRS} pairs of an epoch"
    timed = TimedWork(name, work, matrix_product(), PRODUCT, repetitions=4, count=pairs / PAIRS)
    yield PreparedWork((timed,), matrix_mib(training.shard), MATRIX)


def _begin_training(silo: GeneratedSilo) -> ItemTrainer:
    """Creates a trainer with a given filter.

    The choice by validation is part of the first model's time.
    """
    shard, method = load_shard(silo.shard), METHOD.model_copy(update={"fusion": False})
    training = ItemTrainer(shard, low_spectrum(shard.train, method.cutoff), method, CPU, COMMON_START)
    training.load(Parameters(initial_parameters(mlp_specification(method), 0, exact=True), {"margin": 0.3}))
    training.context = RoundContext(round=1, rounds=ROUNDS, seed=0)
    return training
