"""A model at rest -> the best items of every known user, computed before anybody asks, in files that are mapped.

Shapes: M users, N items, L items a list.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.models.ranker import Ranker, Rows
from client_service.runtime.interruption import Interrupt, Interrupted
from client_service.runtime.logs import LOGGER
from client_service.runtime.memory import return_free_memory
from client_service.serving.ann_index import Nearest, load_nearest, make_nearest, searchable
from shared.files import replace_file
from shared.method.parameters import Float32

RULES = "without all that was met; of equal scores the first row"  # lists by other rules are of no use
LENGTH = 200  # items of a list, of which a request's filters leave some
BLOCK = 1 << 21  # pairs of a user and an item that are scored at a time: a few arrays of 8 MB
LOOK_SECONDS = 0.5  # between two looks at how far another process has come
SETTLED = 64  # blocks after which what is computed survives a restart
LEAST_URGENT = 19  # of the scheduler: answers and training go first

Mask = NDArray[np.bool_]
ListedRows = tuple[NDArray[np.integer], Float32]
"""Rows of items, best first, and their scores."""


@dataclass(eq=False)
class PrecomputedLists:
    """Lists of the users' best items, without those that they have met, best first.

    items (M, L) int32, -1 where there are no more; scores (M, L) float32; `ready`: the first so many rows are there.
    """

    ranker: Ranker
    items: NDArray[np.int32]
    scores: Float32
    ready: int = 0

    def begin(self, row: int, forbidden: Mask | None) -> BegunList | None:
        """A user's list without forbidden items (N,); None where it is not there yet."""
        return None if row >= self.ready else begin_list(self.items[row], self.scores[row], forbidden)


class BegunList(NamedTuple):
    """The first of somebody's items, best first, and their scores. whole: there are no more."""

    items: NDArray[np.integer]
    scores: Float32
    whole: bool

    def first(self, k: int) -> ListedRows | None:
        """The k best; None where it does not reach so far."""
        return (self.items[:k], self.scores[:k]) if len(self.items) >= k or self.whole else None

    def join(self, items: NDArray[np.integer], scores: Float32) -> ListedRows:
        """With the best of all other items behind it, whose scores another sum of the same numbers may have put a last
        bit higher."""
        if not len(self.items):
            return items, scores
        return np.concatenate([self.items, items]), np.concatenate([self.scores, np.minimum(scores, self.scores[-1])])


def begin_list(items: NDArray[np.integer], scores: Float32, forbidden: Mask | None) -> BegunList:
    """A list, best first, -1 where there are no more, without forbidden items (N,)."""
    whole = bool(items[-1] < 0)  # it ends because there are no more
    if forbidden is not None or whole:
        allowed = items >= 0 if forbidden is None else (items >= 0) & ~forbidden[items]
        items, scores = items[allowed], scores[allowed]
    return BegunList(items, scores, whole)


class ListBuilder:
    """Computes the lists of the latest model in the background, as the least urgent work of this machine.

    Before them, for more than `approximate_beyond` items and a model whose scores are inner products, the graph by
    which what is in no list is found; without that number there is none.
    """

    def __init__(
        self, folder: Path, shard: Shard, threads: int | None = None, *, approximate_beyond: int | None = None
    ) -> None:
        self._folder, self._shard, self._beyond = folder, shard, approximate_beyond
        self._threads = threads or max(1, (os.cpu_count() or 1) - 1)
        self._interrupt, self._job = Interrupt(), threading.Thread()
        self.lists: PrecomputedLists | None = None
        self.nearest: Nearest | None = None

    def begin(self, ranker: Ranker) -> None:
        """Compute the lists of this model and of no other."""
        self._interrupt.set()
        self._interrupt = interrupt = Interrupt()
        before = self._job
        self._job = threading.Thread(target=self._keep, args=(ranker, interrupt, before), name="lists", daemon=True)
        self._job.start()

    def close(self) -> None:
        """End the work; what is computed stays for the next start."""
        self._interrupt.set()
        if self._job.is_alive():
            self._job.join()

    def _keep(self, ranker: Ranker, interrupt: Interrupt, before: threading.Thread) -> None:
        if before.is_alive():
            before.join()
        try:
            interrupt.check()
            self._provide(ranker, interrupt)
        except Interrupted:
            pass
        except OSError as error:  # a full disk: each request is computed then
            LOGGER.warning("lists_not_kept", reason=error.strerror)

    def _wants_nearest(self, ranker: Ranker) -> bool:
        return self._beyond is not None and len(ranker.items.embedding) > self._beyond and searchable(ranker)

    def _make_nearest(self, ranker: Ranker, interrupt: Interrupt) -> Nearest | None:
        yield_to_others()  # the threads that build it are of this one's urgency
        try:
            return make_nearest(self._folder, ranker, interrupt, self._threads)
        except OSError as error:  # a full disk: every item is scored then
            LOGGER.warning("nearest_not_kept", reason=error.strerror)
            return None

    def _provide(self, ranker: Ranker, interrupt: Interrupt) -> None:
        if self._wants_nearest(ranker):
            self.nearest = self._make_nearest(ranker, interrupt)
        self.lists, progress = open_lists(self._folder, ranker, self._shard)
        fill(self.lists, self._shard, interrupt, self._threads, progress)
        return_free_memory()


class ListReader(ListBuilder):
    """Reads the lists that another process computes of the same model, as far as they have come, and its graph."""

    def _provide(self, ranker: Ranker, interrupt: Interrupt) -> None:
        stem, shape = _stem_of(self._folder, ranker, self._shard), _shape_of(self._shard)
        progress = stem.with_suffix(".json")
        while not (ready := _known_rows(progress, shape[0])):
            interrupt.wait(LOOK_SECONDS)
        if self._wants_nearest(ranker):
            self.nearest = load_nearest(self._folder, ranker)  # it is made before the first list
        lists = self.lists = PrecomputedLists(ranker, *_map_files(stem, shape, "r"), ready)
        while lists.ready < shape[0]:
            interrupt.wait(LOOK_SECONDS)
            lists.ready = max(lists.ready, _known_rows(progress, shape[0]))


def open_lists(folder: Path, ranker: Ranker, shard: Shard) -> tuple[PrecomputedLists, Path]:
    """The lists of a model as an earlier process left them, or new ones; the files of other models go. And where it is
    written how many rows are ready."""
    stem, shape = _stem_of(folder, ranker, shard), _shape_of(shard)
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.glob("lists-*"):
        if not other.name.startswith(stem.name):
            other.unlink(missing_ok=True)
    progress = stem.with_suffix(".json")
    ready = _known_rows(progress, shape[0]) if all(path.is_file() for path, _ in _files_of(stem)) else 0
    return PrecomputedLists(ranker, *_map_files(stem, shape, "r+" if ready else "w+"), ready), progress


def _stem_of(folder: Path, ranker: Ranker, shard: Shard) -> Path:
    return folder / f"lists-{lists_digest(ranker, shard)[:16]}"


def _shape_of(shard: Shard) -> tuple[int, int]:
    return len(shard.user_ids), min(LENGTH, len(shard.item_ids))


def _files_of(stem: Path) -> tuple[tuple[Path, type[np.int32]], tuple[Path, type[np.float32]]]:
    """Of the items and of their scores."""
    return (stem.with_suffix(".items.npy"), np.int32), (stem.with_suffix(".scores.npy"), np.float32)


def _map_files(stem: Path, shape: tuple[int, int], mode: Literal["r", "r+", "w+"]) -> tuple[NDArray[np.int32], Float32]:
    # A plain view of the mapping: what numpy does for its own kind of map on each look costs more than the look.
    items, scores = (
        np.lib.format.open_memmap(path, mode=mode, dtype=kind, shape=shape).view(np.ndarray)
        for path, kind in _files_of(stem)
    )
    return items, scores


def _known_rows(progress: Path, rows: int) -> int:
    """How many rows are ready by the file; 0 where it is missing or damaged."""
    try:
        found = json.loads(progress.read_bytes())["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) and 0 <= found <= rows else 0


def lists_digest(ranker: Ranker, shard: Shard) -> str:
    """sha256 of all that the lists follow from, but for what the shard and its recipe give again: a model that was
    read from the disk has the lists that it had."""
    found = hashlib.sha256(f"{shard.lists_digest} {RULES} {LENGTH} {ranker.residual}".encode())
    found.update(repr([loudness for loudness, _ in ranker.fusion.parts]).encode())
    sides = ((side.embedding, side.narrow, side.hidden) for side in (ranker.users, ranker.items))
    predictor = ranker.predictor
    for array in (*(one for side in sides for one in side), predictor.on_both, predictor.output, predictor.bias):
        found.update(np.ascontiguousarray(array).tobytes())
    for code in ranker.users.codes:
        for array in (code.data, code.indices, code.indptr) if isinstance(code, sparse.csr_array) else (code,):
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def fill(lists: PrecomputedLists, shard: Shard, interrupt: Interrupt, threads: int, progress: Path) -> None:
    """Compute what is missing, block by block, the rows in order. Interrupted once the wish is there."""
    width, items = lists.items.shape[1], len(shard.item_ids)
    step = max(1, BLOCK // items)
    blocks = [range(first, min(first + step, len(lists.items))) for first in range(lists.ready, len(lists.items), step)]

    def rank(block: range) -> tuple[range, Rows, Float32]:
        interrupt.check()
        rows = np.arange(block.start, block.stop)
        return block, *lists.ranker.top_scored(lists.ranker.users[rows], _known_items(shard, rows), width)

    with ThreadPoolExecutor(threads, "lists", initializer=yield_to_others) as pool:
        try:
            for count, (block, ranked, scores) in enumerate(pool.map(rank, blocks), 1):
                lists.items[block.start : block.stop] = ranked
                lists.scores[block.start : block.stop] = scores
                lists.ready = block.stop
                if count % SETTLED == 0 or block.stop == len(lists.items):
                    _save_progress(lists, progress)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _known_items(shard: Shard, rows: Rows) -> Mask:
    """All items that these users have met, (B, N)."""
    known = np.zeros((len(rows), len(shard.item_ids)), dtype=bool)
    matrix = shard.known_pairs[rows]
    known[np.repeat(np.arange(len(rows)), np.diff(matrix.indptr)), matrix.indices] = True
    return known


def _save_progress(lists: PrecomputedLists, progress: Path) -> None:
    """The rows first, then how many there are."""
    for array in (lists.items, lists.scores):
        assert isinstance(array.base, np.memmap)
        array.base.flush()
    replace_file(progress, json.dumps({"rows": lists.ready}).encode())


def yield_to_others() -> None:
    """The calling thread is the least urgent one, where the system can tell threads apart."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_URGENT)
