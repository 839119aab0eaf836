"""Blobs in a bucket of an S3-compatible store: what is there lasts, and the files of the directory are copies of it.

A body is spooled and looked at as a file in any case. It is kept once its object is whole, which the store makes it in
one step. A copy that is missing or damaged is fetched again when it is asked for, and held against the digest like any
file: so the directory may be lost with its machine.

Who may write into the bucket can take bodies away and put others in their place. These are not used, and one that is
longer than any body of this federation is not fetched: it would fill the disk.

Everything here waits for a network: it runs in worker threads.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from aggregator_service.storage.disk import PART, WHOLE, Blob, Blobs, Disk
from shared.errors import SettingsError, TooLargeError
from shared.timeouts import OBJECT_CONNECT_SECONDS, OBJECT_SECONDS, OBJECT_SILENCE_SECONDS

PLACE = re.compile(r"s3://[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?")
OWNER = "owner"  # the object that names whose place this is
ATTEMPTS = 2


def read_place(given: str) -> str:
    """Bucket and prefix as a path. ValueError for what is no URL of either."""
    if not PLACE.fullmatch(given):
        raise ValueError("expected a URL such as s3://bucket/prefix, got something else")
    return given.removeprefix("s3://").rstrip("/")


class Bucket:
    """The objects below one prefix. Endpoint, region and keys come from the AWS variables or from the machine's role.

    Whatever the client of the store raises passes through; FileNotFoundError means that the object alone is missing.
    """

    def __init__(self, place: str) -> None:
        try:
            from s3fs import S3FileSystem
        except ModuleNotFoundError:
            raise SettingsError(
                "blobs: expected the extra 's3' to be installed, got no client of such a store"
            ) from None
        limits = {"connect_timeout": OBJECT_CONNECT_SECONDS, "read_timeout": OBJECT_SILENCE_SECONDS}
        config = {**limits, "retries": {"total_max_attempts": 1}}
        self._place = place
        self._store: Any = S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True)
        self._store.retries = ATTEMPTS

    def claim(self, owner: str, *, may_hold: bool) -> None:
        """Make the place this owner's. SettingsError where it is another's, or holds blobs that it may not hold."""
        with suppress(FileNotFoundError):
            if self._store.cat_file(self._path(OWNER), timeout=OBJECT_SECONDS).decode() != owner:
                raise SettingsError("blobs: expected a place of this aggregator's own, got one of another signing key")
        if not may_hold and self.names():
            raise SettingsError("blobs: expected an empty place for a new database, got one with blobs")
        self._store.pipe_file(self._path(OWNER), owner.encode(), timeout=OBJECT_SECONDS)

    def put(self, file: str, name: str) -> None:
        self._store.put_file(file, self._path(name), timeout=OBJECT_SECONDS)

    def fetch(self, name: str, file: str, most: int) -> None:
        """TooLargeError for an object of more than so many bytes, which is not fetched."""
        try:
            self._store.get_file(self._path(name), file, callback=_limit_bytes(most), timeout=OBJECT_SECONDS)
        except FileNotFoundError:
            self._require_there()
            raise

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._store.rm_file(self._path(name), timeout=OBJECT_SECONDS)

    def names(self) -> set[str]:
        """Of the blobs."""
        found = self._store.find(self._place, timeout=OBJECT_SECONDS)
        return {path.rpartition("/")[2] for path in found if path.endswith(WHOLE)}

    def _require_there(self) -> None:
        """A store says the same of a missing object and of a missing bucket: all would be taken for lost."""
        try:
            self._store.cat_file(self._path(OWNER), timeout=OBJECT_SECONDS)
        except FileNotFoundError:
            raise ConnectionError("the whole place is missing") from None

    def _path(self, name: str) -> str:
        return f"{self._place}/{name}"


def _limit_bytes(most: int) -> Any:
    """What the store's client tells of a download, which ends it beyond so many bytes."""
    from fsspec.callbacks import Callback

    class Limit(Callback):  # type: ignore[misc]  # it has no types
        def set_size(self, size: int | None) -> None:
            super().set_size(size)
            self._require(size or 0)

        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            self._require(self.value)

        def _require(self, size: int) -> None:
            if size > most:
                raise TooLargeError(f"expected an object of at most {most} bytes, got a longer one")

    return Limit()


class BucketBlobs(Blobs):
    """As `Blobs`, kept in a bucket. `owner`: the aggregator's public key; `may_hold`: may blobs be there already?
    `most`: bytes of a body at most."""

    def __init__(self, directory: Path, disk: Disk, bucket: Bucket, *, owner: str, may_hold: bool, most: int) -> None:
        super().__init__(directory, disk)
        self._bucket, self._most = bucket, most
        self._translated = partial(disk.translate_errors, others=(Exception,))  # its errors have no root of their own
        with self._translated("a bucket that can be used"):
            bucket.claim(owner, may_hold=may_hold)

    def keep(self, blob: Blob) -> None:
        with self._translated(f"{blob.size} bytes to be stored in the bucket"):
            self._bucket.put(self.path(blob.name), blob.name)

    def damage(self, name: str, digest: str) -> str | None:
        found = super().damage(name, digest)
        try:
            return found if found is None or not self._fetch(name) else super().damage(name, digest)
        except TooLargeError as error:
            return f"expected sha256 {digest}: {error}"

    def remove(self, names: Collection[str]) -> None:
        super().remove(names)
        with self._translated("objects to be removed"):
            self._bucket.remove(names)

    def keep_only(self, names: Collection[str]) -> None:
        super().keep_only(names)
        with self._translated("the bucket to be cleared"):
            self._bucket.remove(self._bucket.names() - set(names))

    def _fetch(self, name: str) -> bool:
        """Copy the object to its file, whole or not at all. False where there is none."""
        part = self.path(uuid.uuid4().hex + PART)
        with self._translated("an object to be read"):
            try:
                self._bucket.fetch(name, part, self._most)
                os.replace(part, self.path(name))
            except FileNotFoundError:
                return False
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(part)
        return True
