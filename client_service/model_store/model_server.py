"""A model at rest, as training and the service know it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from client_service.compiled.model import UNFITTED, Relevance


@dataclass(frozen=True)
class FrozenModel:
    """A model that nothing changes any more, with the version that its answers carry.

    kept_at: when it was kept on the disk, UTC, ISO 8601; "" where that is not known. relevance: what its scores mean.
    """

    version: str
    model: nn.Module
    kept_at: str = ""
    relevance: Relevance = UNFITTED
