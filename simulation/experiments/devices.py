"""Simulation of many small devices, a sample of them each round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from client_service.data.sessions import SessionShard
from client_service.runtime.device import pin_threads
from client_service.training.session_trainer import SessionTrainer
from client_service.training.training_state import RoundContext
from shared.method.parameters import Arrays, Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from shared.strategies.local_client import LocalClient
from shared.strategies.strategy import Strategy


class StatelessDevices:
    """Devices without state between rounds: one model serves all.

    Its optimiser begins anew at each visit.
    """

    def __init__(self, clients: Sequence[SessionShard], method: MethodSettings, device: torch.device) -> None:
        self._clients = {one.name: one for one in clients}
        self.names: Sequence[str] = tuple(self._clients)
        self._training = SessionTrainer(clients[0], method, device)

    def visit(self, device: str, context: RoundContext) -> LocalClient:
        """Returns the one model, with that device's sessions."""
        self._training.switch_shard(self._clients[device])
        self._training.context = context
        return self._training


class StatefulSilos:
    """Silos that keep model and optimiser between rounds, as a client service does."""

    def __init__(self, clients: Sequence[SessionShard], method: MethodSettings, device: torch.device) -> None:
        self._trainings = {one.name: SessionTrainer(one, method, device) for one in clients}
        self.names: Sequence[str] = tuple(self._trainings)

    def visit(self, device: str, context: RoundContext) -> LocalClient:
        """Returns that silo's own model."""
        self._trainings[device].context = context
        return self._trainings[device]


def loss_of(client: LocalClient) -> float:
    """Returns the mean loss of the last round."""
    assert isinstance(client, SessionTrainer)
    return client.figures.loss


@dataclass(frozen=True)
class DevicePlan:
    """Plan of a run on devices.

    sample: devices of a round, drawn anew without replacement; all where it is not less than their number. threads: of
    the CPU; small devices gain nothing by more, and the same number makes runs repeatable.
    """

    strategy: str
    method: MethodSettings
    rounds: int
    sample: int
    seed: int = 0
    threads: int = 1


class DeviceCrew(Protocol):
    """Devices in training."""

    @property
    def names(self) -> Sequence[str]: ...

    def visit(self, device: str, context: RoundContext) -> LocalClient:
        """Prepares a device for training in a round; it is used until the next visit."""


@dataclass(frozen=True)
class DeviceRound:
    """State after a round, its mean loss, and the bytes of each update."""

    number: int
    state: State
    loss: float
    bytes: int


def train_devices(plan: DevicePlan, crew: DeviceCrew, loss_of: Callable[[LocalClient], float]) -> Iterator[DeviceRound]:
    """Yields the rounds of a run one by one, so that a caller can stop."""
    pin_threads(plan.threads)
    strategy = build_strategy(plan.strategy, plan.method)
    state, last = State(strategy.start(plan.method, plan.seed)), dict[str, Update]()
    memories: dict[str, Arrays] = {}
    generator = np.random.default_rng(plan.seed)
    for number in range(1, plan.rounds + 1):
        context, updates, losses = RoundContext(number, plan.rounds, plan.seed), list[Update](), list[float]()
        for device in _draw(crew.names, plan.sample, generator):
            client = crew.visit(device, context)
            received = strategy.personalise(state, last.get(device))
            sent = strategy.fit_round(client, received, memories.get(device, {}))
            memories[device] = sent.memory
            updates.append(_make_update(strategy, device, sent, state))
            losses.append(loss_of(client))
        state = strategy.aggregate(state, updates)
        if strategy.mixing is not None or strategy.answer is not None:
            last |= {update.client: update for update in updates}
        yield DeviceRound(number, state, float(np.mean(losses)), _bytes_of(updates[0]))


def _make_update(strategy: Strategy, device: str, sent: Parameters, state: State) -> Update:
    """Builds a device's update, with its reports where the strategy has some."""
    found = sent if strategy.report is None else strategy.report(sent, state.arrays)
    return Update(device, found.arrays, found.scalars)


def _draw(names: Sequence[str], sample: int, generator: np.random.Generator) -> list[str]:
    if sample >= len(names):
        return list(names)
    return [names[place] for place in np.sort(generator.choice(len(names), sample, replace=False))]


def _bytes_of(update: Update) -> int:
    return sum(np.asarray(value).nbytes for value in update.arrays.values())
