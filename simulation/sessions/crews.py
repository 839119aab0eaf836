"""Clients with sessions, as the simulator of devices visits them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from client_service.data.sessions import SessionShard
from client_service.training.session_trainer import SessionTraining
from client_service.training.training_state import Moment
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient


class PassingDevices:
    """Devices that keep nothing between rounds: one model serves all, its optimiser begins anew at each visit."""

    def __init__(self, clients: Sequence[SessionShard], method: MethodSettings, device: torch.device) -> None:
        self._clients = {one.name: one for one in clients}
        self.names: Sequence[str] = tuple(self._clients)
        self._training = SessionTraining(clients[0], method, device)

    def visit(self, device: str, moment: Moment) -> LocalClient:
        """The one model, with that device's sessions."""
        self._training.take_up(self._clients[device])
        self._training.moment = moment
        return self._training


class LastingSilos:
    """Silos that keep their model and its optimiser between rounds, as a client service does."""

    def __init__(self, clients: Sequence[SessionShard], method: MethodSettings, device: torch.device) -> None:
        self._trainings = {one.name: SessionTraining(one, method, device) for one in clients}
        self.names: Sequence[str] = tuple(self._trainings)

    def visit(self, device: str, moment: Moment) -> LocalClient:
        """That silo's own model."""
        self._trainings[device].moment = moment
        return self._trainings[device]


def loss_of(client: LocalClient) -> float:
    """The mean loss of the round that was trained last."""
    assert isinstance(client, SessionTraining)
    return client.figures.loss
