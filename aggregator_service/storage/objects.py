"""Blobs in a bucket of an S3-compatible store.

Files in the directory are copies of them. A body is always spooled and checked as a file. It is durable once its
object is complete, which the store makes it in one step. A missing or damaged copy is fetched again when it is
needed, and its digest is checked like any file's: so the directory may be lost with its machine.

A writer of the bucket can remove bodies and put others in their place. These are not used, and one that is longer
than any body of this federation is not fetched: it would fill the disk.

Everything here waits for a network: it runs in worker threads.
"""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aggregator_service.process import run_in_worker
from aggregator_service.storage.body_parts import BodyRange
from aggregator_service.storage.disk import PART, WHOLE, Blob, Blobs, Disk
from shared.errors import SettingsError, TooLargeError
from shared.timeouts import OBJECT_CONNECT_SECONDS, OBJECT_SECONDS, OBJECT_SILENCE_SECONDS

PLACE = re.compile(r"s3://[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?")
OWNER = "owner"  # the object with the owner's key
ATTEMPTS = 2
AT_ONCE = 16  # ranges that a worker asks for at a time


def read_place(given: str) -> str:
    """Returns bucket and prefix as a path; raises ValueError for an invalid URL."""
    if not PLACE.fullmatch(given):
        raise ValueError("expected a URL such as s3://bucket/prefix, got something else")
    return given.removeprefix("s3://").rstrip("/")


class Bucket:
    """Objects below one prefix.

    Endpoint, region and keys come from the AWS variables or from the machine's role. Errors of the store's client
    pass through; FileNotFoundError means that only the object is missing.
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
        """Claims the prefix for this owner.

        Raises SettingsError if it is another's, or has blobs and may not.
        """
        with suppress(FileNotFoundError):
            if self._store.cat_file(self._path(OWNER), timeout=OBJECT_SECONDS).decode() != owner:
                raise SettingsError("blobs: expected a prefix of this aggregator's own, got one of another signing key")
        if not may_hold and self.names():
            raise SettingsError("blobs: expected an empty prefix for a new database, got one with blobs")
        self._store.pipe_file(self._path(OWNER), owner.encode(), timeout=OBJECT_SECONDS)

    def put(self, file: str, name: str) -> None:
        self._store.put_file(file, self._path(name), timeout=OBJECT_SECONDS)

    def fetch(self, name: str, file: str, most: int) -> None:
        """Copies an object to a file; raises TooLargeError for one above `most` bytes."""
        try:
            self._store.get_file(self._path(name), file, callback=_limit_bytes(most), timeout=OBJECT_SECONDS)
        except FileNotFoundError:
            self._require_there()
            raise

    def read_ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes | None]:
        """Reads ranges of objects, AT_ONCE at a time; None for a missing or shorter one."""
        names, begins, ends = zip(*wanted, strict=True)
        found = self._store.cat_ranges(
            [self._path(name) for name in names], list(begins), list(ends), batch_size=AT_ONCE, timeout=OBJECT_SECONDS
        )
        for error in (one for one in found if isinstance(one, BaseException)):
            if not isinstance(error, FileNotFoundError) and not _is_beyond_the_end(error):
                raise error
        if any(isinstance(one, FileNotFoundError) for one in found):
            self._require_there()
        return [None if isinstance(one, BaseException) else one for one in found]

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._store.rm_file(self._path(name), timeout=OBJECT_SECONDS)

    def names(self, *, before: float = math.inf) -> set[str]:
        """Returns the names of the blobs that are older than a time."""
        found = self._store.find(self._place, detail=True, timeout=OBJECT_SECONDS)
        old = {path for path, seen in found.items() if before == math.inf or seen["LastModified"].timestamp() < before}
        return {path.rpartition("/")[2] for path in old if path.endswith(WHOLE)}

    def _require_there(self) -> None:
        """Raises ConnectionError if the whole prefix is missing.

        A store answers the same for a missing object and for a missing bucket: all would be taken for lost.
        """
        try:
            self._store.cat_file(self._path(OWNER), timeout=OBJECT_SECONDS)
        except FileNotFoundError:
            raise ConnectionError("the whole prefix is missing") from None

    def _path(self, name: str) -> str:
        return f"{self._place}/{name}"


def _is_beyond_the_end(error: BaseException) -> bool:
    """Tells whether a store has refused a range because its object is shorter."""
    answer: dict[str, Any] = (getattr(error.__cause__, "response", None) or {}).get("ResponseMetadata", {})
    return bool(answer.get("HTTPStatusCode") == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)


def _limit_bytes(most: int) -> Any:
    """Returns a download callback that raises TooLargeError above `most` bytes."""
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
    """Blobs in a bucket, with copies in a directory.

    owner: public key of the aggregator. may_hold: whether blobs may exist already. most: largest body in bytes.
    """

    shared = False

    def __init__(self, directory: Path, disk: Disk, bucket: Bucket, *, owner: str, may_hold: bool, most: int) -> None:
        super().__init__(directory, disk)
        self._bucket, self._most = bucket, most
        self._translated = partial(disk.translate_errors, others=(Exception,))  # its errors have no root of their own
        with self._translated("a bucket that can be used"):
            bucket.claim(owner, may_hold=may_hold)

    def keep(self, blob: Blob) -> None:
        with self._translated(f"{blob.size} bytes to be stored in the bucket"):
            self._bucket.put(self.path(blob.name), blob.name)

    async def keep_received(self, blob: Blob) -> None:
        await run_in_worker(self.keep, blob)

    def damage(self, name: str, digest: str) -> str | None:
        found = super().damage(name, digest)
        try:
            return found if found is None or not self._fetch(name) else super().damage(name, digest)
        except TooLargeError as error:
            return f"expected sha256 {digest}: {error}"

    def read_ranges(self, wanted: Sequence[BodyRange]) -> list[memoryview | None]:
        """Reads ranges of copies that are here and sound, all others from the bucket."""
        found = super().read_ranges(wanted)
        missing = [place for place, one in enumerate(found) if one is None and wanted[place].is_inside]
        if missing:
            asked = [wanted[place] for place in missing]
            with self._translated("parts of objects to be read"):
                read = self._bucket.read_ranges([(one.name, one.whole_begin, one.whole_end) for one in asked])
            for place, one, content in zip(missing, asked, read, strict=True):
                found[place] = None if content is None else one.cut(content)
        return found

    def remove(self, names: Collection[str]) -> None:
        super().remove(names)
        with self._translated("objects to be removed"):
            self._bucket.remove(names)

    def keep_only(self, names: Collection[str], *, before: float = math.inf) -> None:
        super().keep_only(names, before=before)
        with self._translated("the bucket to be cleared"):
            self._bucket.remove(self._bucket.names(before=before) - set(names))

    def drop_copies(self, *, before: float) -> None:
        super().keep_only((), before=before)

    def _fetch(self, name: str) -> bool:
        """Copies an object to its file, complete or not at all.

        False if there is none.
        """
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
