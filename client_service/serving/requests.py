"""What a request asks the recommender for, and a list as it was looked up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Fault, ProtocolError

DEEPEST = 1000  # items down to which a list can be asked for
MOST_LISTED = 100_000  # items of all lists of one answer together: some 60 MB while it is written
POOL = 200  # best items that are put into another order by mmr and freshness: as many as a list holds

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ListRequest:
    """What a request asks for: how many, whether to leave out seen items, and a mask (N,) of forbidden items.

    offset: how many of the best come before the first that is answered. mmr, freshness: weights in [0, 1] of being
    unlike the items before, and of being new; with either the best POOL items are put into another order. explain: say
    which of the user's items count most for each. raw: the model's own score instead of the relevance.
    """

    k: int
    exclude_seen: bool = True
    forbidden: Mask | None = None
    offset: int = 0
    mmr: float = 0.0
    freshness: float = 0.0
    explain: bool = False
    raw: bool = False

    @property
    def rearranged(self) -> bool:
        """Is the order another one than by score?"""
        return self.mmr > 0.0 or self.freshness > 0.0

    @property
    def depth(self) -> int:
        """How many of the best have to be known."""
        return POOL if self.rearranged else self.offset + self.k

    @property
    def costly(self) -> bool:
        """Is there more to compute than a look-up, even where the list is at hand?"""
        return self.rearranged or self.explain or self.forbidden is not None

    def require_reachable(self) -> None:
        """ProtocolError for items further down than any list goes."""
        most, where = (POOL, " with mmr or freshness") if self.rearranged else (DEEPEST, "")
        if self.offset + self.k > most:
            told = f"offset + k: expected at most {most}{where}, got {self.offset + self.k}"
            raise ProtocolError(told, faults=(Fault("out-of-range", "offset", told),))


@dataclass(frozen=True)
class Basket:
    """Items of somebody who is in no graph, and what is asked for."""

    items: tuple[str, ...]
    limits: ListRequest


@dataclass(frozen=True)
class Listed:
    """A known user's list as it was looked up: the model's version, and each item with its score and title."""

    version: str
    items: Iterable[tuple[str, float, str | None]]
