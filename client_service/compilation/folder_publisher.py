"""Publishes a compiled shard and its models for the serving processes.

Where the disk refuses, this process answers without a publication.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel

from client_service.compiled.arrays import Arrays, save_folder
from client_service.compiled.publication import Publication, drop_unpublished, publish, read_publication
from client_service.model_store.model_server import FrozenModel
from client_service.runtime.logs import LOGGER
from shared.errors import DataError

T = TypeVar("T")


def read_known_publication(serving: Path) -> Publication | None:
    """Reads what is published; None, with a line in the log, for an unreadable file."""
    try:
        return read_publication(serving)
    except DataError as error:
        LOGGER.warning("publication_not_read", reason=str(error))
        return None


class DigestedShard(Protocol):
    """Shard with the digests of what models, and answers, follow from."""

    @property
    def digest(self) -> str: ...

    @property
    def lists_digest(self) -> str: ...


class FolderPublisher:
    """Publisher of one shard and its models, in the folder `serving`.

    The processes that answer read this folder, and only its publisher writes to it. If the disk refuses, this process
    answers from memory, the log says that the other processes do not have these answers, and `failure` holds the error
    until something is published.
    """

    def __init__(self, serving: Path, task: str, shard: DigestedShard) -> None:
        self.failure: OSError | None = None
        self._serving, self._task, self._digests = serving, task, shard
        self._publication: Publication | None = None  # of the shard, without a model

    def save_shard(self, kind: str, head: BaseModel, arrays: Arrays) -> Path | None:
        """Writes the compiled shard and returns its folder; None if the disk refuses."""
        return self._save_shard(lambda: save_folder(self._serving, kind, head, arrays))

    def _save_shard(self, write: Callable[[], Path]) -> Path | None:
        folder = self._try(write)
        if folder is not None:
            own = self._digests
            self._publication = Publication(
                task=self._task, shard=folder.name, shard_digest=own.digest, lists_digest=own.lists_digest
            )
        return folder

    def publish_shard(self) -> None:
        """Publishes the saved shard without a model, unless it is published already.

        Other folders are removed. A published model of the shard stays. A damaged publication, or one of another
        version, is replaced.
        """
        if (own := self._publication) is None:
            return
        before = read_known_publication(self._serving)
        self._publish(own if before is None or before.shard != own.shard else None)

    def save_model(self, kind: str, head: BaseModel, arrays: Arrays) -> Path | None:
        """Writes a compiled model, and returns its folder.

        Returns None if the disk refuses it, or has refused the shard.
        """
        if self._publication is None:
            return None
        return self._try(lambda: save_folder(self._serving, kind, head, arrays))

    def publish_model(self, folder: Path | None, served: FrozenModel, replaced: Path | None = None) -> None:
        """Publishes a model beside the shard, and removes other folders.

        folder: None if it could not be saved; then nothing changes. replaced: see `_publish`.
        """
        if folder is not None and self._publication is not None:
            named = {"model": folder.name, "version": served.version, "kept_at": served.kept_at}
            self._publish(self._publication.model_copy(update=named), replaced)

    def _publish(self, publication: Publication | None, replaced: Path | None = None) -> None:
        """Publishes folders, and removes old ones.

        publication: None if it is published already. replaced: the folder to remove; None: all unpublished folders.
        """

        def write() -> bool:
            if publication is not None:
                publish(self._serving, publication)
            if replaced is None:
                drop_unpublished(self._serving)
            else:
                shutil.rmtree(replaced, ignore_errors=True)
            return True

        if self._try(write):
            self.failure = None

    def _try(self, write: Callable[[], T]) -> T | None:
        """Calls a function that writes; records the error and returns None if the disk refuses."""
        try:
            return write()
        except OSError as error:
            self.failure = error
            LOGGER.warning("answers_not_published", reason=error.strerror)
            return None
