"""What the agent works with: everything of the silo that the network never sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from client_service.anchors import KnownAnchors
from client_service.learning.interrupt import Interrupt
from client_service.metrics import ClientMetrics
from client_service.privacy.basis_guard import BasisGuard
from client_service.privacy.guard import Guard
from client_service.secure.masking import Masking
from client_service.serving.answerer import Answerer
from client_service.settings import ClientSettings
from client_service.tasks.task import Task, TaskShard


@dataclass(frozen=True)
class Silo:
    """What the agent works with and the network never sees. `interrupt`: what its slow work looks at. `guard`: there
    with differential privacy, `basis_guard`: with that of the common basis; `masking`: there in a secure federation;
    `anchors`: which ones rho was compared with."""

    settings: ClientSettings
    task: Task[Any, Any]
    shard: TaskShard
    answers: Answerer
    device: torch.device
    metrics: ClientMetrics
    interrupt: Interrupt
    anchors: KnownAnchors
    guard: Guard | None = None
    basis_guard: BasisGuard | None = None
    masking: Masking | None = None
