"""What a request asks the recommender for, and a list as it was looked up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Limits:
    """What a request asks for: how many, whether to leave out seen items, and a mask (N,) of forbidden items."""

    k: int
    exclude_seen: bool = True
    forbidden: Mask | None = None


@dataclass(frozen=True)
class Basket:
    """Items of somebody who is in no graph, and what is asked for."""

    items: tuple[str, ...]
    limits: Limits


@dataclass(frozen=True)
class Listed:
    """A known user's list as it was looked up: the model's version, and each item with its score and title."""

    version: str
    items: Iterable[tuple[str, float, str | None]]
