"""The complete task that CONTRIBUTING names, trained in a run."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest
import torch

from client_service.federation.messages import RoundCosts
from client_service.federation.training_run import TrainingRun
from client_service.runtime.interruption import NEVER
from client_service.settings import ClientSettings
from client_service.tasks.task import RunContext
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.method.tensors import EXCHANGES, ExchangeableTensors
from shared.strategies import build_strategy
from tests.support import label_task
from tests.support.label_task import softmax_specification
from tests.support.small import small_client


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's module, with its model in the registry."""
    monkeypatch.setitem(EXCHANGES, "softmax", ExchangeableTensors(softmax_specification, task="labels"))
    return label_task


@pytest.fixture
def settings(recipe: ModuleType, tmp_path: Path) -> ClientSettings:
    """A silo whose rows lie on two sides of a plane."""
    del recipe
    generator, folder = np.random.default_rng(0), tmp_path / "rows"
    features = generator.normal(size=(300, 4)).astype(np.float32)
    folder.mkdir()
    columns = {f"feature_{place}": column for place, column in enumerate(features.T)}
    labels = (features.sum(axis=1) > 0).astype(np.int64)
    pl.DataFrame({"label": labels, **columns}).write_parquet(folder / "rows.parquet")
    method = method_settings(model="softmax", width=4, learning_rate=0.1, batch_size=20, local_epochs=5)
    return small_client(folder, tmp_path, task="labels", strategy="fedavg", method=method)


def test_the_printed_task_learns_answers_and_ends_its_run(recipe: ModuleType, settings: ClientSettings) -> None:
    task, method, cpu = recipe.TASK, settings.method, torch.device("cpu")
    shard = task.read(settings)
    context = RunContext(settings.name, "run-1", 0, method, settings.models_directory)
    opened = task.open(settings, shard)
    run = TrainingRun(context, task, shard, opened.answers, cpu, NEVER)
    strategy = build_strategy("fedavg", method)
    received = Parameters(strategy.start(method, 0))
    run.begin(received, 0)
    for number in (1, 2):
        received, _ = run.fit(strategy, RoundContext(number, 2, 0), received)
        run.apply(received, RoundCosts(round=number))
    run.finish()
    assert run.quality.test is not None and run.quality.test["accuracy"] > 0.9
    assert (opened.answers.answer(shard.features) == shard.labels).mean() > 0.9
