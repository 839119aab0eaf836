"""The clicks of a visit so far, and what came next: examples over one array of clicks. Numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
LONGEST_PREFIX = 50  # clicks of a prefix that count, the last ones


@dataclass(frozen=True)
class Prefixes:
    """P examples over one array of clicks.

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
        """The click after each prefix, (P,)."""
        return self.clicks[self.end]

    @property
    def last(self) -> Int64:
        """The last click of each prefix, (P,)."""
        return self.clicks[self.end - 1]

    @property
    def lengths(self) -> Int64:
        """Clicks of each prefix, (P,)."""
        return self.end - self.begin

    def select(self, rows: Int64 | NDArray[np.bool_]) -> Prefixes:
        """Some of the examples, in this order."""
        return Prefixes(self.clicks, self.begin[rows], self.end[rows])

    def renumber(self, numbers: Int64) -> Prefixes:
        """The same with each click c as numbers[c]."""
        return Prefixes(numbers[self.clicks], self.begin, self.end)

    def pad(self) -> tuple[Int64, Int64]:
        """All prefixes side by side, (P, longest), 0 behind their end; and their lengths, (P,)."""
        lengths = self.lengths
        places = np.arange(lengths.max(initial=1))
        inside = places < lengths[:, None]
        taken = np.where(inside, self.begin[:, None] + places, 0)
        return np.where(inside, self.clicks[taken], 0), lengths


def prefixes_of_sessions(clicks: Int64, starts: Int64, *, longest: int = LONGEST_PREFIX) -> Prefixes:
    """Every prefix of every session. starts: where each begins, and the end of the last, (S + 1,).

    Of a prefix longer than `longest` its last clicks.
    """
    lengths = np.diff(starts)
    begin = np.repeat(starts[:-1], lengths)
    end = np.arange(len(clicks))
    later = end > begin
    return Prefixes(clicks, np.maximum(begin[later], end[later] - longest), end[later])
