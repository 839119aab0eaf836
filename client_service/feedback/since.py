"""Later interactions of one user -> which items they make liked, and which seen: of each item the latest decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from client_service.models.ranker import Rows


class Meeting(NamedTuple):
    """The latest interaction with one item. time: seconds since 1970, UTC."""

    time: int
    liked: bool


@dataclass(frozen=True)
class Since:
    """What one user has met since: rows of the items liked, of those that were liked once and are no more, or never,
    and of all that were seen, each ascending."""

    liked: Rows
    disliked: Rows
    seen: Rows


@dataclass(frozen=True)
class Later:
    """The latest interaction of one user with each item, by its row. Nothing changes it: another takes its place."""

    meetings: Mapping[int, Meeting]

    @cached_property
    def since(self) -> Since:
        """The same object, as long as nothing new has come."""
        rows = np.array(sorted(self.meetings), dtype=np.int64)
        liked = np.array([self.meetings[row].liked for row in rows.tolist()], dtype=bool)
        return Since(rows[liked], rows[~liked], rows)
