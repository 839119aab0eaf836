"""Defines prefixes of visits and their next clicks, as examples over one array.

Only numpy is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
LONGEST_PREFIX = 50  # most clicks of a prefix, which are its last ones


@dataclass(frozen=True)
class Prefixes:
    """P examples of prefixes over one array of clicks.

    clicks: items in the order of clicks, session after session, (K,). begin, end: (P,); the prefix is
    clicks[begin:end] and its target clicks[end].
    """

    clicks: Int64
    begin: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.end)

    @property
    def targets(self) -> Int64:
        """Click after each prefix, (P,)."""
        return self.clicks[self.end]

    @property
    def last(self) -> Int64:
        """Last click of each prefix, (P,)."""
        return self.clicks[self.end - 1]

    @property
    def lengths(self) -> Int64:
        """Number of clicks of each prefix, (P,)."""
        return self.end - self.begin

    def select(self, rows: Int64 | NDArray[np.bool_]) -> Prefixes:
        """Selects some of the examples, in the order of `rows`."""
        return Prefixes(self.clicks, self.begin[rows], self.end[rows])

    def renumber(self, numbers: Int64) -> Prefixes:
        """Replaces each click c by numbers[c]."""
        return Prefixes(numbers[self.clicks], self.begin, self.end)

    def pad(self) -> tuple[Int64, Int64]:
        """Pads all prefixes with 0 to one length, (P, longest).

        Returns them, and their lengths, (P,).
        """
        lengths = self.lengths
        places = np.arange(lengths.max(initial=1))
        inside = places < lengths[:, None]
        taken = np.where(inside, self.begin[:, None] + places, 0)
        return np.where(inside, self.clicks[taken], 0), lengths


def list_prefixes(clicks: Int64, starts: Int64, *, longest: int = LONGEST_PREFIX) -> Prefixes:
    """Lists every prefix of every session.

    starts: where each session begins, and the end of the last, (S + 1,). A prefix of more than `longest` clicks keeps
    its last ones.
    """
    lengths = np.diff(starts)
    begin = np.repeat(starts[:-1], lengths)
    end = np.arange(len(clicks))
    later = end > begin
    return Prefixes(clicks, np.maximum(begin[later], end[later] - longest), end[later])
