"""Streams of bytes -> durable files: spooled beside their final place while hashed, synced, then renamed."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from shared.errors import TooLargeError

PART, WHOLE = ".part", ".safetensors"
PIECE = 1 << 20  # bytes gathered before a worker thread writes them


@dataclass(frozen=True)
class Blob:
    """A durable file: its name in the directory, the sha256 of its content, its size in bytes."""

    name: str
    digest: str
    size: int


class Spool:
    """A blob that is being written. Leaving the context without `finish` removes it."""

    def __init__(self, directory: Path) -> None:
        self._stem = directory / uuid.uuid4().hex
        self._file = self._stem.with_suffix(PART).open("xb")
        self._hash = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()
        self._stem.with_suffix(PART).unlink(missing_ok=True)

    def write(self, piece: bytes) -> None:
        self._hash.update(piece)
        self._file.write(piece)
        self.size += len(piece)

    def finish(self) -> Blob:
        self._file.flush()
        os.fsync(self._file.fileno())
        final = self._stem.with_suffix(WHOLE)
        self._stem.with_suffix(PART).rename(final)
        _sync(final.parent)
        return Blob(final.name, self._hash.hexdigest(), self.size)


class Blobs:
    """The files of one directory. Names are random, so that no two uploads can meet."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def path(self, name: str) -> Path:
        return self._directory / name

    def save(self, body: bytes) -> Blob:
        with Spool(self._directory) as spool:
            spool.write(body)
            return spool.finish()

    async def receive(self, body: AsyncIterator[bytes], *, limit: int) -> Blob:
        """Spool a stream in worker threads; TooLargeError as soon as it is over `limit` bytes."""
        with Spool(self._directory) as spool:
            gathered = bytearray()
            async for piece in body:
                gathered += piece
                if spool.size + len(gathered) > limit:
                    raise TooLargeError(f"expected at most {limit} bytes, got more")
                if len(gathered) >= PIECE:
                    await to_thread.run_sync(spool.write, bytes(gathered))
                    gathered.clear()
            return await to_thread.run_sync(_complete, spool, bytes(gathered))

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove what no row of the database speaks of: what a crash left between a file and its commit."""
        for file in self._directory.iterdir():
            if file.suffix in (PART, WHOLE) and file.name not in names:
                file.unlink(missing_ok=True)


def _complete(spool: Spool, rest: bytes) -> Blob:
    spool.write(rest)
    return spool.finish()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
