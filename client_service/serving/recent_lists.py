"""Users of whom something has come since the shard was written -> their lists as they were computed last.

A list is good for one model and for what was known then: with the user's next interaction, with the next item that is
hidden, and with the next model, it is computed anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.event_log.overlay import LatestEvents
from client_service.models.ranker import Ranker, Rows
from client_service.serving.precomputed_lists import BegunList, Mask, begin_list
from shared.method.parameters import Float32

MOST = 20_000  # users, 1.6 kB each


class ListKey(NamedTuple):
    """A user as he is known at one moment: his row in the shard, and what has come since; None for neither.

    by_row: does his list follow from his row? Else it follows from the basket of all that he likes. hidden: the items
    (N,) that nobody is to see. met: rows of the items that the shard says he has met, of a user without a row.
    """

    user: str
    row: int | None
    since: LatestEvents | None
    by_row: bool
    hidden: Mask | None
    met: Rows

    def agrees_with(self, other: ListKey) -> bool:
        """Is the same known? By identity: it is the same object until more has come."""
        return self.row == other.row and self.since is other.since and self.hidden is other.hidden


class _Recent(NamedTuple):
    asked: ListKey
    items: NDArray[np.integer]
    scores: Float32


class RecentLists:
    """At most `most` of them: the one that was not asked for longest goes first. Any thread may ask."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, threading.Lock()
        self._lists: OrderedDict[str, _Recent] = OrderedDict()
        # Of the model that they all are of, and what was hidden then: nothing earlier stays in memory.
        self._ranker: Ranker | None = None
        self._hidden: Mask | None = None

    def begin(self, ranker: Ranker, asked: ListKey, forbidden: Mask | None) -> BegunList | None:
        """This user's list without forbidden items (N,); None where it is not there."""
        with self._lock:
            found = self._lists.get(asked.user)
            if found is None or self._ranker is not ranker or not found.asked.agrees_with(asked):
                return None
            self._lists.move_to_end(asked.user)
        return begin_list(found.items, found.scores, forbidden)

    def keep(self, ranker: Ranker, asked: ListKey, items: NDArray[np.integer], scores: Float32) -> None:
        """The best items of this user, -1 where there are no more, without those that he has met."""
        with self._lock:
            if self._ranker is not ranker or self._hidden is not asked.hidden:
                self._lists.clear()
                self._ranker, self._hidden = ranker, asked.hidden
            self._lists[asked.user] = _Recent(asked, items, scores)
            self._lists.move_to_end(asked.user)
            while len(self._lists) > self._most:
                self._lists.popitem(last=False)
