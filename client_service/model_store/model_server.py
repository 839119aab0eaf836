"""What training and the service know of answers: a model at rest, and whoever answers by it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from torch import nn

from client_service.models.ranker import UNFITTED, Relevance


@dataclass(frozen=True)
class FrozenModel:
    """A model that nothing changes any more, with the version that its answers carry.

    kept_at: when it was kept on the disk, UTC, ISO 8601; "" where that is not known. relevance: what its scores mean.
    """

    version: str
    model: nn.Module
    kept_at: str = ""
    relevance: Relevance = UNFITTED


class ModelServer:
    """Answers from one model at a time. Putting in another is one assignment: a request sees the old or the new.

    served: the model that answers, of the task's own class; None before there is one. changing: held by who puts
    another model in place and on the disk. known_users: how many get a list of their own. shown_items: how many can be
    answered. lists_share: share of the known users whose lists are computed. score_meaning: of an answered item.
    """

    score_meaning: str
    served: Any = None

    def __init__(self) -> None:
        self.changing = threading.Lock()

    @property
    def known_users(self) -> int:
        return 0

    @property
    def shown_items(self) -> int:
        return 0

    @property
    def lists_share(self) -> float:
        return 0.0

    def close(self) -> None:
        """Ends what goes on in the background; by default nothing does."""
