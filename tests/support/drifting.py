"""A strategy that uses all that travels beside a model: reports up, broadcasts down, and memory at each client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shared import strategies
from shared.method.declaration import TensorSpec
from shared.method.parameters import Arrays, State
from shared.method.settings import MethodSettings
from shared.strategies.local_client import FitInput, FitResult, LocalClient
from shared.strategies.strategy import Strategy, all_exchanged

NAME = "drifting"
SAID, TOLD, ROUNDS = (TensorSpec(name=name, shape=(2,)) for name in ("said", "told", "own.rounds"))


def fit_counting(client: LocalClient, received: FitInput) -> FitResult:
    """Count the rounds that this client remembers, and report them with what the server told it."""
    client.load(received)
    client.train()
    rounds = received.memory[ROUNDS.name] + np.float32(1.0)
    said = {SAID.name: rounds + received.broadcast[TOLD.name]}
    return FitResult({**client.arrays(), **said}, {}, {ROUNDS.name: rounds})


def step_drifting(before: State, centre: State) -> State:
    """Every number moves by a thousandth of the reports, which are told to everybody."""
    del before
    moved = np.float32(0.001) * centre.reports[SAID.name][0]
    arrays: Arrays = {name: value + moved for name, value in centre.arrays.items()}
    return replace(centre, arrays=arrays, memory={TOLD.name: centre.reports[SAID.name]})


def drifting(method: MethodSettings) -> Strategy:
    """FedAvg that depends on what every client remembers and is told: without either, its digests differ."""
    return Strategy(
        NAME,
        shared=all_exchanged(method),
        reports=(SAID,),
        broadcasts=(TOLD,),
        client_memory=(ROUNDS,),
        fit=fit_counting,
        step=step_drifting,
    )


def register_drifting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add it to the registry for one test."""
    monkeypatch.setitem(strategies.STRATEGIES, NAME, drifting)
