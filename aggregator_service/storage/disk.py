"""Disk of a state directory: files that hold bodies, and errors of the disk.

A refusal becomes an error that says what was expected and what came, never a path. It is kept until the disk accepts
data again. A stream of bytes becomes a durable file: spooled beside its final place while hashed, synced, then
renamed. Before a file is read again, its digest is checked.

The paths of blobs are plain strings. pathlib interns every part of a path, and the interpreter's table of interned
strings keeps the places of removed ones until it is rebuilt: it would grow with every upload.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import sqlite3
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedWriter
from itertools import count
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from aggregator_service.process import run_in_worker
from aggregator_service.storage.body_parts import BodyRange, PartDigests
from shared.errors import DataError, FederationError, StorageFullError, TooLargeError, UnavailableError, UnsettledError
from shared.files import sync_path

Found = TypeVar("Found")
FULL = frozenset({"ENOSPC", "EDQUOT", "EFBIG", "SQLITE_FULL", "DiskFull"})


class LostCommitError(ConnectionError):
    """The connection to a server broke while it was to commit."""


class Disk:
    """Disk of one state directory; `refusal`: its last refusal, None once it accepts data again."""

    def __init__(self) -> None:
        self.refusal: str | None = None

    @contextmanager
    def translate_errors(self, what: str, others: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Raises UnavailableError for errors of the disk or database inside.

        It is StorageFullError without room, UnsettledError if the data may or may not be stored. what: expected
        data, in words. others: further errors that count as refusals.
        """
        refusals: tuple[type[Exception], ...] = (OSError, SQLAlchemyError, sqlite3.Error, *others)
        try:
            yield
        except FederationError:
            raise
        except refusals as error:
            name = _name(error)
            refused = _kind(error, name)(f"expected {what}, got {name}")
            self.refusal = str(refused)
            raise refused from error


def _kind(error: Exception, name: str) -> type[UnavailableError]:
    if isinstance(error, LostCommitError):
        return UnsettledError
    return StorageFullError if name in FULL else UnavailableError


def _name(error: Exception) -> str:
    """Returns the system's name of an error, such as ENOSPC or SQLITE_FULL.

    Its longer messages may contain a path.
    """
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "sqlite_errorname", type(cause).__name__)


PART, WHOLE = ".part", ".safetensors"
NAME = re.compile(r"[0-9a-f]{32}\.(safetensors|part)")  # as a Spool makes it
PIECE = 1 << 20  # bytes gathered before a worker thread writes them
MOST_SOUND = 1 << 18  # files that are remembered as sound; 40 MiB


@dataclass(frozen=True)
class Blob:
    """Durable file: its name in the directory, its sha256, its size in bytes.

    parts: digests of its parts, if they were counted.
    """

    name: str
    digest: str
    size: int
    parts: bytes | None = None


class SharedSync:
    """Sync of a directory that threads share.

    One serves all whose files were there before it began.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._lock = directory, threading.Lock()
        self._tickets, self._served = count(1), 0

    def sync(self) -> None:
        """Makes the names in the directory durable."""
        mine = next(self._tickets)
        with self._lock:
            if self._served < mine:
                last = next(self._tickets)
                sync_path(self._directory)
                self._served = last


class Spool:
    """Blob that is being written, removed unless `finish` completes within the context.

    A caller may be cancelled just when a worker thread has finished it. Raises UnavailableError if the disk
    refuses. digest: sha256 in hex of all that was written, if the caller counts it; called by `finish`. parted:
    whether the digests of its parts are counted. synced: sync of the directory, where other threads share it.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        digest: Callable[[], str] | None = None,
        *,
        parted: bool = False,
        synced: SharedSync | None = None,
    ) -> None:
        self._name, self._disk, self._synced = uuid.uuid4().hex + WHOLE, disk, synced or SharedSync(directory)
        self._whole = os.path.join(directory, self._name)
        self._part = self._whole.removesuffix(WHOLE) + PART
        self._file: BufferedWriter | None = None  # opened by the first `write`, in its thread
        self._hash, self._digest = (hashlib.sha256() if digest is None else None), digest
        self._parts = PartDigests() if parted else None
        self._durable = False
        self.size = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *reason: object) -> None:
        with self._disk.translate_errors("a file to be closed"):
            try:
                if self._file is not None:
                    self._file.close()  # this also fails without room: it writes buffered data
            finally:
                if kind is not None or not self._durable:
                    _remove(self._part)
                    _remove(self._whole)

    def write(self, piece: bytes) -> None:
        if self._hash is not None:
            self._hash.update(piece)
        if self._parts is not None:
            self._parts.update(piece)
        self.size += len(piece)
        with self._disk.translate_errors(f"{self.size} bytes to be stored"):
            if self._file is None:
                self._file = open(self._part, "xb")  # noqa: SIM115 - it is closed with this
            self._file.write(piece)

    def look(self, inspect: Callable[[str], Found]) -> Found:
        """Inspects what was written, as a file, before it is durable."""
        with self._disk.translate_errors("the body to be read again"):
            assert self._file is not None
            self._file.flush()
            return inspect(self._part)

    def finish(self) -> Blob:
        with self._disk.translate_errors(f"{self.size} bytes to be stored"):
            assert self._file is not None
            self._file.flush()
            os.fsync(self._file.fileno())
            os.rename(self._part, self._whole)
            self._synced.sync()
        self._durable = True
        parts = None if self._parts is None else self._parts.finish()
        if self._hash is not None:
            return Blob(self._name, self._hash.hexdigest(), self.size, parts)
        assert self._digest is not None
        return Blob(self._name, self._digest(), self.size, parts)


class Blobs:
    """Files of one directory, under random names, so that no two uploads collide.

    shared: whether workers that share the bodies share these files too.
    """

    shared = True

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.directory, self._disk, self._synced = directory, disk, SharedSync(directory)
        self._sound: dict[str, tuple[int, int]] = {}  # size and time of change of the files that were found sound
        with disk.translate_errors("a directory for blobs"):
            directory.mkdir(parents=True, exist_ok=True)
            sync_path(directory.parent)

    def path(self, name: str) -> str:
        """Returns the path of a blob; raises DataError for an invalid name.

        A row that another program wrote could otherwise lead anywhere.
        """
        if not NAME.fullmatch(name):
            raise DataError("expected the name of a stored body, got another: another program has changed the database")
        return os.path.join(self.directory, name)

    def save(self, body: Iterable[bytes]) -> Blob:
        """Stores a body that comes in pieces."""
        with Spool(self.directory, self._disk, synced=self._synced) as spool:
            for piece in body:
                spool.write(piece)
            blob = spool.finish()
        try:
            self.keep(blob)
        except BaseException:
            self.discard(blob)
            raise
        return blob

    async def receive(
        self,
        body: AsyncIterator[bytes],
        *,
        limit: int,
        inspect: Callable[[str], Found],
        digest: Callable[[], str] | None = None,
        parted: bool = False,
    ) -> tuple[Blob, Found]:
        """Spools a stream in worker threads; the caller then keeps or discards it.

        inspect: looks at the whole body in a file, in the thread that stores it. digest: sha256 in hex of the whole
        body, once it has come, if the caller counts it as it comes. parted: as in `Spool`. Raises TooLargeError as
        soon as it is over `limit` bytes.
        """
        with Spool(self.directory, self._disk, digest, parted=parted, synced=self._synced) as spool:
            gathered = bytearray()
            async for piece in body:
                gathered += piece
                if spool.size + len(gathered) > limit:
                    raise TooLargeError(f"expected at most {limit} bytes, got more")
                if len(gathered) >= PIECE:
                    await run_in_worker(spool.write, bytes(gathered))
                    gathered.clear()
            return await run_in_worker(_finish_spool, spool, bytes(gathered), inspect)

    def read_ranges(self, wanted: Sequence[BodyRange]) -> list[memoryview | None]:
        """Reads ranges of bodies, each checked by itself; None for a damaged one."""
        return [self._read_range(one) for one in wanted]

    def _read_range(self, wanted: BodyRange) -> memoryview | None:
        if not wanted.is_inside:
            return None
        with self._disk.translate_errors("a stored file to be read"):
            try:
                with open(self.path(wanted.name), "rb") as file:
                    file.seek(wanted.whole_begin)
                    return wanted.cut(file.read(wanted.whole_end - wanted.whole_begin))
            except FileNotFoundError:
                return None

    def keep(self, blob: Blob) -> None:
        """Makes a received body durable; here it already is."""

    async def keep_received(self, blob: Blob) -> None:
        """Does what `keep` does without blocking the event loop; here nothing."""

    def discard(self, blob: Blob) -> None:
        """Removes a received body that is not kept."""
        _remove(self.path(blob.name))

    def damage(self, name: str, digest: str) -> str | None:
        """Describes the damage of a stored file; None if its content still has this digest.

        The file is read whole, once: after that, a file of the same size and modification time counts as unchanged.
        It is read before it is mapped into memory, where a disk error would end the process instead of raising.
        """
        with self._disk.translate_errors("a stored file to be read"):
            try:
                return self._difference(name, digest)
            except FileNotFoundError:
                return f"expected sha256 {digest}, got no file"

    def mark(self, name: str) -> int | None:
        """Returns the time of change of a sound file, for another worker to `trust`."""
        seen = self._sound.get(name)
        return None if seen is None else seen[1]

    def trust(self, name: str, size: int, mark: int) -> None:
        """Trusts a file that another worker has checked, until it changes.

        mark: its time of change, as that worker has seen it.
        """
        self._remember(name, (size, mark))

    def _difference(self, name: str, digest: str) -> str | None:
        with open(self.path(name), "rb") as file:
            status = os.fstat(file.fileno())
            seen = status.st_size, status.st_mtime_ns
            if self._sound.get(name) == seen:
                return None
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            return f"expected sha256 {digest}, got {found}"
        self._remember(name, seen)
        return None

    def _remember(self, name: str, seen: tuple[int, int]) -> None:
        if len(self._sound) >= MOST_SOUND:  # another worker removes files that this one has seen
            self._sound.clear()
        self._sound[name] = seen

    def probe(self, size: int) -> None:
        """Stores and removes this many bytes; raises UnavailableError while the disk refuses."""
        self.remove([self.save([bytes(size)]).name])

    def remove(self, names: Collection[str]) -> None:
        with self._disk.translate_errors("files to be removed"):
            for name in names:
                _remove(self.path(name))
                self._sound.pop(name, None)

    def keep_only(self, names: Collection[str], *, before: float = math.inf) -> None:
        """Removes files without a row, which a crash left between a file and its commit.

        before: only those that are older than this time.
        """
        with self._disk.translate_errors("the directory of blobs to be cleared"):
            for file in self.directory.iterdir():
                if file.suffix in (PART, WHOLE) and file.name not in names and _is_older(file, before):
                    file.unlink(missing_ok=True)

    def drop_copies(self, *, before: float) -> None:
        """Removes old copies of bodies that lie elsewhere; here they lie nowhere else."""


def _is_older(file: Path, time: float) -> bool:
    with suppress(FileNotFoundError):  # another worker has removed it
        return time == math.inf or file.stat().st_mtime < time
    return False


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _finish_spool(spool: Spool, rest: bytes, inspect: Callable[[str], Found]) -> tuple[Blob, Found]:
    spool.write(rest)
    found = spool.look(inspect)
    return spool.finish(), found
