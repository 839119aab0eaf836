"""The sessions of a request, ids of items -> arrays of the shard's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_service.sessions.prefixes import LONGEST_PREFIX, Int64, Prefixes


@dataclass(frozen=True)
class Visits:
    """S sessions. seen: all clicks on known items, in their order, repeats and all. last: the LONGEST_PREFIX last of
    these, by which is answered. unknown: clicks on items that the shard has not, (S,)."""

    seen: Prefixes
    last: Prefixes
    unknown: Int64

    @property
    def has_known(self) -> NDArray[np.bool_]:
        """Which sessions have a known item, (S,)."""
        return self.seen.lengths > 0


def read_visits(sessions: Sequence[Sequence[str]], rows: Mapping[str, int]) -> Visits:
    """rows: of each known item."""
    lengths = np.fromiter(map(len, sessions), dtype=np.int64, count=len(sessions))
    found = np.fromiter((rows.get(item, -1) for one in sessions for item in one), dtype=np.int64, count=lengths.sum())
    owners = np.repeat(np.arange(len(sessions)), lengths)
    counts = np.bincount(owners[found >= 0], minlength=len(sessions))
    ends = np.cumsum(counts)
    clicks = np.append(found[found >= 0], 0)  # one more: what comes after the last click is not known
    seen = Prefixes(clicks, ends - counts, ends)
    last = Prefixes(clicks, np.maximum(seen.begin, ends - LONGEST_PREFIX), ends)
    return Visits(seen, last, lengths - counts)
