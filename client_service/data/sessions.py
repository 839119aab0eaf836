"""Click sessions of a silo: prefixes with their next click, and counts of item pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.digests import list_content
from client_service.data.id_columns import rows_of_ids


def count_pairs(rows: Int64, columns: Int64, shape: tuple[int, int]) -> sparse.csr_array:
    """How often each pair occurs, float32."""
    ones = np.ones(len(rows), dtype=np.float32)
    return sparse.csr_array(sparse.coo_array((ones, (rows, columns)), shape=shape))


def occurring_pairs(rows: Int64, columns: Int64, shape: tuple[int, int]) -> sparse.csr_array:
    """1 where a pair occurs, float32."""
    found = count_pairs(rows, columns, shape)
    found.data[:] = 1.0
    return found


def scale_rows(matrix: sparse.csr_array, weights: np.ndarray) -> sparse.csr_array:
    """Each row times its weight."""
    found = matrix.copy()
    found.data = found.data * np.repeat(weights, np.diff(found.indptr)).astype(found.data.dtype)
    return found


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


TRAIN, VALID, TEST = 0, 1, 2
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class SessionShard:
    """S sessions of K clicks over the silo's own N items.

    item_ids: ascending, (N,). clicks: rows of these items, session after session, (K,); examples are over these rows
    too. starts: where each session begins, and the end of the last, (S + 1,). splits: of each session, (S,). places:
    the items' rows in the catalogue that all clients share, (N,), ascending; without one their own.
    """

    name: str
    item_ids: Sequence[str]
    clicks: Int64
    starts: Int64
    splits: NDArray[np.int8]
    places: Int64
    titles: Sequence[str | None] | None = None
    catalogue: str = ""
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """sha256 of the content and of the places: what is computed from them is kept under it. The name does not
        count."""
        digest = hashlib.sha256(list_content(self.item_ids))
        for part in (self.clicks, self.starts, self.splits, self.places):
            digest.update(np.ascontiguousarray(part, dtype="<i8").data)
        return digest.hexdigest()

    @property
    def lists_digest(self) -> str:
        """`digest`: what a visit has met comes with each request."""
        return self.digest

    @cached_property
    def train(self) -> Prefixes:
        return self._examples(TRAIN)

    @cached_property
    def valid(self) -> Prefixes:
        return self._examples(VALID)

    @cached_property
    def test(self) -> Prefixes:
        return self._examples(TEST)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each item by its id."""
        return rows_of_ids(self.item_ids)

    def with_places(self, places: Int64, catalogue: str) -> SessionShard:
        """The same over a shared catalogue, of which this is the list's digest."""
        return replace(self, places=places, catalogue=catalogue)

    def split_sessions(self, split: int) -> tuple[Int64, Int64]:
        """Clicks and starts of one split's sessions."""
        lengths = np.diff(self.starts)
        chosen = np.repeat(self.splits == split, lengths)
        starts = np.concatenate([[0], np.cumsum(lengths[self.splits == split])])
        return self.clicks[chosen], starts

    def _examples(self, split: int) -> Prefixes:
        return prefixes_of_sessions(*self.split_sessions(split))
