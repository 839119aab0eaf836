"""Measures of a client that need no equation of the paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from client_service.data.interactions import Shard
from client_service.training.item_trainer import ItemTrainer
from client_service.training.optimisers import OPTIMISERS
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum


def test_local_steps_are_those_that_the_optimiser_makes_in_a_round(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = MethodSettings(
        width=3, layers=1, cutoff=16, negatives=4, batch_size=50, local_epochs=3, optimiser="sgd", start="random"
    )
    client = ItemTrainer(planted, low_spectrum(planted.train, 16), method, torch.device("cpu"))
    made, sgd = [], OPTIMISERS["sgd"]
    step = sgd.step

    def count(optimiser: torch.optim.SGD, *arguments: Any) -> Any:
        made.append(1)
        return step(optimiser, *arguments)

    monkeypatch.setattr(sgd, "step", count)
    client.train()
    assert client.measure("local_steps") == (float(len(made)),) and len(made) > 3
