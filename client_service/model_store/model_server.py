"""Defines the frozen model that training and the service share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from client_service.compiled.model import UNFITTED, Relevance


@dataclass(frozen=True)
class FrozenModel:
    """Model that no longer changes, with the version that its answers carry.

    kept_at: when it was kept on the disk, UTC, ISO 8601; "" for an unknown time. relevance: meaning of its scores.
    """

    version: str
    model: nn.Module
    kept_at: str = ""
    relevance: Relevance = UNFITTED
