"""Item vectors whose inner products with users are a model's scores -> a graph that finds the best few without a look
at every item. What it finds is scored again exactly: only which items are in a list is approximate.

Shapes: B users, N items, q embedding width, k items a list.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_service.models.ranker import Ranker, Rows, Side
from client_service.runtime.interruption import Interrupt
from client_service.runtime.logs import LOGGER
from shared.files import open_replacement, put_in_place
from shared.method.parameters import Float32

Index = Any  # usearch's, which may not be installed, and whose own types miss that its breadth can be set
CONNECTIVITY = 16  # edges of an item in the graph; twice as many at its lowest level
BREADTH_BUILT, BREADTH = 64, 1000  # items that a step of building, and a search, keep in view
OVER = 2  # times the items that are asked for, so that what filters take away leaves enough
MOST_EXCLUDED = 1000  # of a user: beyond it, and with lists of what is allowed, every item is scored
BLOCK = 1 << 12  # items between two looks at whether somebody wants the work to end
SETTLED = 16  # blocks after which what is built survives a restart


class Nearest:
    """The graph over one model's items."""

    def __init__(self, ranker: Ranker, index: Index) -> None:
        self.ranker, self._index = ranker, index
        index.expansion_search = BREADTH

    def top_scored(self, users: Side, excluded: NDArray[np.bool_], k: int) -> tuple[Rows, Float32] | None:
        """As `Ranker.top_scored`; None where too few are found, or the exclusions (B, N) leave fewer than k."""
        most = int(excluded.sum(axis=1).max())
        wanted = OVER * k + most
        if most > MOST_EXCLUDED or wanted >= excluded.shape[1]:
            return None
        found = self.find(users.embedding, wanted)
        if found is None:
            return None
        scores = np.einsum("bq,bnq->bn", users.embedding, self.ranker.items.embedding[found])
        scores += self.ranker.predictor.bias
        scores[np.take_along_axis(excluded, found, 1)] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(scores, order, 1).astype(np.float32)
        return None if np.isneginf(best).any() else (np.take_along_axis(found, order, 1), best)

    def find(self, users: Float32, count: int) -> Rows | None:
        """Rows of `count` items whose inner products with users (B, q) are about the highest, (B, count), ascending;
        None where a search comes to an end before it has so many."""
        asked = np.ascontiguousarray(np.pad(users, ((0, 0), (0, 1))))
        found = self._index.search(asked, count, threads=1)
        counts = (len(found),) if len(users) == 1 else found.counts
        if min(counts) < count:  # what a batch's rows hold beyond is no item
            return None
        return np.sort(found.keys.reshape(len(users), count).astype(np.int64), axis=1)


def searchable(ranker: Ranker) -> bool:
    """Are its scores inner products, but for a constant? Not with a fusion, whose parts are standardised over all
    items, nor with a predictive MLP that tells items apart."""
    return ranker.residual and not ranker.fusion.parts and ranker.predictor.reach == 0.0


def installed() -> bool:
    """Is there the extra `approximate`?"""
    return importlib.util.find_spec("usearch") is not None


def make_nearest(folder: Path, ranker: Ranker, interrupt: Interrupt, threads: int) -> Nearest | None:
    """The graph as an earlier process left it, finished where it was not whole, and mapped; the files of other models
    go. None, and a line in the log, without the extra."""
    path = _path_of(folder, ranker)
    for other in folder.glob("nearest-*"):
        if not other.name.startswith(path.stem):
            other.unlink(missing_ok=True)
    if not installed():
        LOGGER.warning("approximate_search_not_installed", items=len(ranker.items.embedding))
        return None
    if (kept := load_nearest(folder, ranker)) is not None:
        return kept
    _build(path, ranker, interrupt, threads)
    return load_nearest(folder, ranker)


def load_nearest(folder: Path, ranker: Ranker) -> Nearest | None:
    """The graph of this model, mapped; None where there is none that is whole."""
    path = _path_of(folder, ranker)
    if not installed() or not path.is_file():
        return None
    index = _new_index(ranker)
    try:
        index.view(path)
    except RuntimeError:  # the library's word for a damaged file
        LOGGER.warning("nearest_not_read", reason="damaged")
        return None
    return Nearest(ranker, index) if len(index) == len(ranker.items.embedding) else None


def lengthened(items: Float32) -> Float32:
    """Items with one more coordinate, (N, q + 1), all of the same length: the order of their angles to a user, whose
    own such coordinate is 0, is that of the inner products."""
    squares = np.einsum("nq,nq->n", items, items)
    rest = np.sqrt(np.maximum(squares.max() - squares, 0.0, dtype=np.float32))
    return np.ascontiguousarray(np.concatenate([items, rest[:, None]], axis=1))  # a ranker's lie by columns


def _build(path: Path, ranker: Ranker, interrupt: Interrupt, threads: int) -> None:
    """Item by item in the order of the rows, from where an earlier process was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun, items = path.with_suffix(".begun"), lengthened(ranker.items.embedding)
    index = _begun_index(begun, ranker)
    for count, first in enumerate(range(len(index), len(items), BLOCK), 1):
        interrupt.check()
        index.add(np.arange(first, min(first + BLOCK, len(items))), items[first : first + BLOCK], threads=threads)
        if count % SETTLED == 0:
            _save(index, begun)
    _save(index, begun)
    put_in_place(begun, path)


def _begun_index(begun: Path, ranker: Ranker) -> Index:
    """What is there of it; an empty one where that is nothing, or damaged."""
    index = _new_index(ranker)
    if begun.is_file():
        try:
            index.load(begun)
        except RuntimeError:
            return _new_index(ranker)
    return index


def _save(index: Index, begun: Path) -> None:
    with open_replacement(begun) as partial:
        try:
            index.save(partial)
        except RuntimeError:  # the library's word for a disk that is full, or read-only
            raise OSError(errno.EIO, "the graph's file cannot be written") from None


def _new_index(ranker: Ranker) -> Index:
    from usearch import index

    width = ranker.items.embedding.shape[1] + 1
    return index.Index(ndim=width, metric="cos", dtype="f32", connectivity=CONNECTIVITY, expansion_add=BREADTH_BUILT)


def _path_of(folder: Path, ranker: Ranker) -> Path:
    vectors = np.ascontiguousarray(ranker.items.embedding)
    found = hashlib.sha256(f"{vectors.shape} {CONNECTIVITY} {BREADTH_BUILT}".encode())
    found.update(vectors.data)
    return folder / f"nearest-{found.hexdigest()[:16]}.usearch"
