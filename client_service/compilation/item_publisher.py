"""Compiles and publishes a silo's shard and models, and fills the lists of known users.

The lists are filled in the background.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_service.compilation.cold_items import CompiledCold, compile_cold_items, rank_cold_items
from client_service.compilation.folder_publisher import FolderPublisher, read_known_publication
from client_service.compilation.item_model import (
    compile_exactly,
    compile_in_memory,
    compile_model,
    is_chosen_at_once,
    is_compiled,
)
from client_service.compilation.shard import compile_in_memory as compile_shard_in_memory
from client_service.compilation.shard import compile_shard
from client_service.compiled.arrays import read_folder_head
from client_service.compiled.cold_items import ColdItems
from client_service.compiled.model import (
    CompiledModel,
    CompiledModelHead,
    MappedLists,
    map_lists,
    open_model,
)
from client_service.compiled.shard import open_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import ServedItems
from client_service.models.ranker import Ranker, Rows
from client_service.runtime.interruption import NEVER, Interrupt, Interrupted
from client_service.runtime.logs import LOGGER, describe_failure, describe_place
from client_service.runtime.memory import return_free_memory
from shared.errors import DataError

BLOCK = 1 << 21  # pairs of a user and an item that are scored at a time: a few arrays of 8 MB
FLUSH_SECONDS = 0.25  # least time between two writes of filled lists to the disk, after which servers read them
LOWEST_PRIORITY = 19  # lowest priority of the scheduler, so that answers and training go first


class ItemPublisher(FolderPublisher):
    """Publisher of one shard of items, which also fills the lists of known users.

    judged: the shard whose validation items choose a form, if `shard` uses all data for training. replace_model: called
    with the compiled model once its form is replaced by a smaller one.
    """

    def __init__(self, shard: Shard, serving: Path, threads: int | None = None, judged: Shard | None = None) -> None:
        super().__init__(serving, "items", shard)
        self._shard, self._judged = shard, judged
        self._threads = threads or max(1, (os.cpu_count() or 1) - 1)
        self._interrupt, self._job = Interrupt(), threading.Thread()
        self.replace_model: Callable[[CompiledModel], None] = lambda _: None
        self._chosen: CompiledModelHead | None = None  # the last model whose form was chosen
        folder = self._save_shard(lambda: compile_shard(shard, serving))
        self.compiled = compile_shard_in_memory(shard) if folder is None else open_shard(folder)

    def serve_model(self, served: ServedItems | None) -> CompiledModel | None:
        """Compiles and publishes a model, and begins to fill its lists in the background.

        Lists of the model before are filled no further. A form that takes long to choose is also chosen in the
        background, and the model's own scores answer until then. A model that is already published stays as it is.
        None: the shard answers without a model.
        """
        self.close()
        if served is None:
            if self._publication is not None:
                self._publish(self._publication)
            return None
        served.model.encoder.drop_training_state()
        if self._publication is None:
            return compile_in_memory(served, self._shard, judged=self._judged)
        before, later, cold = self._published_model(), False, None
        if before is not None and before.head.chosen_for:
            self._chosen = before.head

        def write() -> Path:
            nonlocal later, cold
            if before is not None and is_compiled(before.head, served, self._shard):
                return before.folder
            if later := not is_chosen_at_once(served, self._shard):
                if before is not None and before.head.cold is not None:  # lists keep their places for new items
                    cold = compile_cold_items(served, self._shard, NEVER, self._judged)
                return compile_exactly(served, self._shard, self._serving, self._judged, cold)
            return compile_model(served, self._shard, self._serving, self._chosen, judged=self._judged)

        if (folder := self._try(write)) is None:
            return compile_in_memory(served, self._shard, judged=self._judged)
        model = open_model(folder, self.compiled)
        self.publish_model(folder, served)
        self._begin(_Work(served, folder, model.head, later, cold))
        return model

    @property
    def is_busy(self) -> bool:
        """Whether a form is chosen or lists are filled in the background."""
        return self._job.is_alive()

    def close(self) -> None:
        """Ends the background work; lists that are filled stay for the next start."""
        self._interrupt.set()
        if self._job.is_alive():
            self._job.join()

    def _published_model(self) -> _Published | None:
        published = read_known_publication(self._serving)
        if published is None or published.model is None:
            return None
        folder = self._serving / published.model
        try:
            return _Published(folder, read_folder_head(folder, CompiledModelHead))
        except DataError:  # the folder is damaged, and the model is compiled anew
            return None

    def _begin(self, work: _Work) -> None:
        self._interrupt = interrupt = Interrupt()
        self._job = threading.Thread(
            target=self._work_and_free_memory, args=([work], interrupt), name="lists", daemon=True
        )
        self._job.start()

    def _work_and_free_memory(self, waiting: list[_Work], interrupt: Interrupt) -> None:
        """Does waiting work, and returns the memory of its model."""
        self._work(waiting.pop(), interrupt)
        return_free_memory()

    def _work(self, work: _Work, interrupt: Interrupt) -> None:
        """Chooses a model's form if that is due, and fills its lists.

        `serve_model` ends this work before it begins that of another model.
        """
        lower_thread_priority()
        folder, head = work.folder, work.head
        try:
            if work.chooses_form:
                try:
                    folder, head = self._choose_form(work, interrupt)
                except Interrupted:
                    raise
                except Exception as error:  # the exact form is published and goes on answering
                    LOGGER.error("form_not_chosen", reason=describe_failure(error), at=describe_place(error))
            cold = open_model(folder, self.compiled).cold
            lists = map_lists(folder, head, "r+")
            fill_lists(work.served.ranker, lists, self._shard, interrupt, self._threads, cold)
        except Interrupted:
            return
        except Exception as error:  # users without a list are ranked for when they ask
            LOGGER.error("lists_not_filled", reason=describe_failure(error), at=describe_place(error))

    def _choose_form(self, work: _Work, interrupt: Interrupt) -> tuple[Path, CompiledModelHead]:
        """Publishes the model in the form that validation chooses; returns its folder and head."""
        shard, serving, cold = self._shard, self._serving, work.cold
        folder = compile_model(work.served, shard, serving, self._chosen, interrupt, self._judged, cold)
        interrupt.check()
        # Only the replaced folder is removed, since the next shard may already be compiled in `serving`.
        model = open_model(folder, self.compiled)
        self.publish_model(folder, work.served, replaced=work.folder)
        self.replace_model(model)
        self._chosen = model.head
        return folder, model.head


class _Published(NamedTuple):
    """A published model with its folder and head."""

    folder: Path
    head: CompiledModelHead


class _Filled(NamedTuple):
    """Computed lists of a block of users.

    They hold items and scores, and those of the users' cold items.
    """

    block: range
    items: Rows
    scores: NDArray[np.float32]
    cold: tuple[Rows, NDArray[np.float32]] | None


class _Work(NamedTuple):
    """Background work for a compiled model: its lists, and perhaps its form.

    cold: what cold items are scored by, if it is compiled already.
    """

    served: ServedItems
    folder: Path
    head: CompiledModelHead
    chooses_form: bool
    cold: CompiledCold | None


def fill_lists(
    ranker: Ranker,
    lists: MappedLists,
    shard: Shard,
    interrupt: Interrupt,
    threads: int,
    cold: ColdItems | None = None,
) -> None:
    """Fills the missing lists of known users, block by block, in row order.

    Interrupted as soon as `interrupt` is set. cold: the cold items, whose lists are filled as well.
    """
    users, width = lists.items.shape
    step = max(1, BLOCK // len(shard.item_ids))
    blocks = [range(first, min(first + step, users)) for first in range(int(lists.ready[0]), users, step)]

    def rank(block: range) -> _Filled:
        interrupt.check()
        rows, known = np.arange(block.start, block.stop), _known_items(shard, np.arange(block.start, block.stop))
        best_cold = None
        if cold is not None and len(cold.rows):
            best_cold = rank_cold_items(cold, shard.train[rows], known)
        return _Filled(block, *ranker.top_k_with_scores(ranker.users[rows], known, width), best_cold)

    with ThreadPoolExecutor(threads, "lists", initializer=lower_thread_priority) as pool:
        try:
            flushed = float("-inf")  # so that the first block is read at once
            for block, items, scores, best_cold in pool.map(rank, blocks):
                filled = slice(block.start, block.stop)
                lists.items[filled], lists.scores[filled] = items, scores
                if lists.first_items is not None and lists.first_scores is not None:
                    first = lists.first_items.shape[1]
                    lists.first_items[filled], lists.first_scores[filled] = items[:, :first], scores[:, :first]
                if best_cold is not None and lists.cold_items is not None and lists.cold_scores is not None:
                    lists.cold_items[filled], lists.cold_scores[filled] = best_cold
                if block.stop < users and time.monotonic() - flushed < FLUSH_SECONDS:
                    continue
                # Lists are written before their number, so that a power cut leaves no empty list counted as filled.
                _flush(*(array for array in lists if array is not lists.ready))
                lists.ready[0], flushed = block.stop, time.monotonic()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _flush(lists.ready)


def lower_thread_priority() -> None:
    """Gives the calling thread the lowest priority, if the system has priorities of threads."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def _known_items(shard: Shard, rows: Rows) -> NDArray[np.bool_]:
    """Marks the items that these users have interacted with, (B, N)."""
    known = np.zeros((len(rows), len(shard.item_ids)), dtype=bool)
    matrix = shard.known_pairs[rows]
    known[np.repeat(np.arange(len(rows)), np.diff(matrix.indptr)), matrix.indices] = True
    return known


def _flush(*arrays: NDArray[np.generic] | None) -> None:
    for array in arrays:
        if array is not None and isinstance(array.base, np.memmap):
            array.base.flush()
