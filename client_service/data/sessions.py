"""Click sessions of a silo: prefixes with their next click, and counts of item pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.digests import encode_list
from client_service.data.id_columns import index_ids
from client_service.data.prefixes import Int64, Prefixes, list_prefixes


def count_pairs(rows: Int64, columns: Int64, shape: tuple[int, int]) -> sparse.csr_array:
    """Counts how often each pair occurs, float32."""
    ones = np.ones(len(rows), dtype=np.float32)
    return sparse.csr_array(sparse.coo_array((ones, (rows, columns)), shape=shape))


def mark_pairs(rows: Int64, columns: Int64, shape: tuple[int, int]) -> sparse.csr_array:
    """Marks the pairs that occur with 1, float32."""
    found = count_pairs(rows, columns, shape)
    found.data[:] = 1.0
    return found


def scale_rows(matrix: sparse.csr_array, weights: np.ndarray) -> sparse.csr_array:
    """Multiplies each row by its weight."""
    found = matrix.copy()
    found.data = found.data * np.repeat(weights, np.diff(found.indptr)).astype(found.data.dtype)
    return found


def shuffle_batches(lengths: Int64, size: int, generator: np.random.Generator) -> Iterator[Int64]:
    """Yields rows of all examples in random batches of similar lengths.

    Examples are shuffled, sorted by length within WINDOW batches of `size`, and the batches come in a random order;
    little is padding then.
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
    """Click sessions of a silo: S sessions of K clicks over its own N items.

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
        """sha256 over content and places, which keys what is computed from them.

        The name does not count.
        """
        digest = hashlib.sha256(encode_list(self.item_ids))
        for part in (self.clicks, self.starts, self.splits, self.places):
            digest.update(np.ascontiguousarray(part, dtype="<i8").data)
        return digest.hexdigest()

    @property
    def lists_digest(self) -> str:
        """Digest of all data that answers depend on; requests carry the items of a visit."""
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
        """Row of each item by its id."""
        return index_ids(self.item_ids)

    def with_places(self, places: Int64, catalogue: str) -> SessionShard:
        """Returns the shard over a shared catalogue, by the digest of its list."""
        return replace(self, places=places, catalogue=catalogue)

    def split_sessions(self, split: int) -> tuple[Int64, Int64]:
        """Returns clicks and starts of one split's sessions."""
        lengths = np.diff(self.starts)
        chosen = np.repeat(self.splits == split, lengths)
        starts = np.concatenate([[0], np.cumsum(lengths[self.splits == split])])
        return self.clicks[chosen], starts

    def _examples(self, split: int) -> Prefixes:
        return list_prefixes(*self.split_sessions(split))
