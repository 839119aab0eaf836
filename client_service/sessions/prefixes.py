"""Click sessions -> prefixes with the click that came next. Arrays alone: no loop over sessions.

Items are rows of the shard's list of items. A session of l clicks has l - 1 prefixes, each of which is one example.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def shuffled_batches(lengths: Int64, size: int, generator: np.random.Generator) -> Iterator[Int64]:
    """Rows of all examples in batches of `size`, each of similar lengths, so that little is padding.

    Drawn anew: examples are shuffled, sorted by length within WINDOW batches, and the batches come in a drawn order.
    """
    order = generator.permutation(len(lengths))
    window = np.arange(len(order)) // (size * WINDOW)
    order = order[np.lexsort((lengths[order], window))]
    batches = -(-len(order) // size)
    return (order[place * size : (place + 1) * size] for place in generator.permutation(batches))


WINDOW = 64
