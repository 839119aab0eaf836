"""The penalties that strategies state without torch are felt where training has it."""

from __future__ import annotations

import numpy as np
import torch

from client_service.learning.local import LocalTraining
from client_service.shard import Shard
from shared.method.exchanged import Parameters
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.strategies import build_strategy

METHOD = MethodSettings(width=3, layers=1, cutoff=16, negatives=4, mlp_learning_rate=1e-2, local_epochs=40)


def fitted(shard: Shard, name: str) -> tuple[dict[str, Float32], float]:
    """What a client of this strategy sends, and how far that is from what it had received (squared)."""
    strategy = build_strategy(name, METHOD)
    spectrum = low_spectrum(shard.train, METHOD.cutoff)
    client = LocalTraining(shard, spectrum, METHOD, torch.device("cpu"), kind=strategy.model)
    received = client.arrays()
    sent = strategy.fit(client, Parameters(received)).arrays
    return dict(sent), float(sum(((sent[name] - received[name]) ** 2).sum() for name in received))


def test_fedprox_ends_nearer_to_what_was_received_than_fedavg(planted: Shard) -> None:
    (free, far), (held, near) = fitted(planted, "fedavg"), fitted(planted, "fedprox")
    assert 0.0 < near < far
    assert set(free) == set(held) and all(np.isfinite(value).all() for value in held.values())
