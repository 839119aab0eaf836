"""Parameters -> a body to be answered: in memory while it is small, else in a file that is gone with the answer."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aggregator_service.storage.disk import Disk
from aggregator_service.threads import off_loop
from shared.method.exchanged import Parameters
from shared.protocol.bodies import pieces

LONGEST_IN_MEMORY = 1 << 20  # bytes
CHUNK = 1 << 18  # bytes read from the file at a time


@dataclass(frozen=True)
class Body:
    """A body that is ready to be sent, once. `digest`: sha256 in hex.

    Its file closes with it: a caller who has gone, or whose request was cancelled while a thread wrote, takes nothing.
    """

    file: IO[bytes]
    size: int
    digest: str

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    async def stream(self) -> AsyncIterator[bytes]:
        """Its pieces; after the last one, or when nobody takes the next, nothing of it is left."""
        try:
            while piece := await off_loop(self.file.read, CHUNK):
                yield piece
        finally:
            self.close()

    def whole(self) -> bytes | None:
        """All of a body that is small, and then nothing is left of it; None where it should be streamed."""
        if self.size > LONGEST_IN_MEMORY:
            return None
        content = self.file.read()
        self.close()
        return content

    def close(self) -> None:
        self.file.close()


def prepare_body(parameters: Parameters, folder: Path, disk: Disk) -> Body:
    """The body of these parameters. UnavailableError where it is large and the disk refuses.

    The file has no name: nothing is left of it after a crash.
    """
    file: IO[bytes] = tempfile.SpooledTemporaryFile(LONGEST_IN_MEMORY, dir=str(folder))  # noqa: SIM115 - it outlives this
    try:
        with disk.translate_refusal("an answer to be stored"):
            return _write_body(file, parameters)
    except BaseException:
        file.close()
        raise


def _write_body(file: IO[bytes], parameters: Parameters) -> Body:
    total, size = hashlib.sha256(), 0
    for piece in pieces(parameters):
        total.update(piece)
        size += len(piece)
        file.write(piece)
    file.seek(0)
    return Body(file, size, total.hexdigest())
