"""Numbers that training gives step by step -> their mean."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST = 1024  # numbers that there is room for at first


class StepValues:
    """Kept in one tensor. A tensor of its own for each step would lie in memory between the large ones of that step,
    whose place could then not be used again: 4 MB a step were lost so, until the epoch's end."""

    def __init__(self, device: torch.device) -> None:
        self._values, self._count = torch.zeros(FIRST, device=device), 0

    def add(self, value: Tensor) -> None:
        """One number, without what it was computed from. It stays on its device."""
        if self._count == len(self._values):
            self._values = torch.cat([self._values, torch.zeros_like(self._values)])
        self._values[self._count] = value.detach()
        self._count += 1

    def mean(self) -> float:
        """nan before the first number."""
        return float(self._values[: self._count].mean())
