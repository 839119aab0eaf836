"""Bodies of answers with parameters, and the file format of a state."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import IO

from aggregator_service.process import run_in_worker
from aggregator_service.storage.disk import Disk
from shared.method.parameters import Array, Arrays, Form, Parameters, Scalars, State, array_form, array_part
from shared.protocol.wire import body_pieces

LONGEST_IN_MEMORY = 1 << 20  # bytes
CHUNK = 1 << 18  # bytes read from the file at a time


@dataclass(frozen=True)
class Body:
    """Body of an answer, which can be sent once.

    digest: sha256 in hex. Its file is closed with the body, so a caller who leaves, or whose request is cancelled
    while a thread writes, leaves nothing behind.
    """

    file: IO[bytes]
    size: int
    digest: str

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields the body in pieces, then closes its file.

        The file is also closed when the caller leaves before the end.
        """
        try:
            while piece := await run_in_worker(self.file.read, CHUNK):
                yield piece
        finally:
            self.close()

    def read_small(self) -> bytes | None:
        """Returns a small body whole and closes it; None if it must be streamed."""
        if self.size > LONGEST_IN_MEMORY:
            return None
        content = self.file.read()
        self.close()
        return content

    def kept_in_memory(self) -> Body | None:
        """Returns a small body that can be copied; None if it lies in a file."""
        content = self.read_small()
        return None if content is None else Body(BytesIO(content), self.size, self.digest)

    def copy(self) -> Body:
        """Returns a body with the same bytes; this one must be in memory."""
        assert isinstance(self.file, BytesIO)
        return Body(BytesIO(self.file.getvalue()), self.size, self.digest)

    def close(self) -> None:
        self.file.close()


def prepare_body(parameters: Parameters, folder: Path, disk: Disk) -> Body:
    """Writes parameters to a body, in memory or in an unnamed temporary file.

    A crash leaves nothing of such a file. Raises UnavailableError if it is large and the disk refuses it.
    """
    with disk.translate_errors("an answer to be stored"):
        pieces, held, size = body_pieces(parameters), list[bytes](), 0
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size > LONGEST_IN_MEMORY:
                return _write_body(chain(held, pieces), folder)
        content = b"".join(held)
        return Body(BytesIO(content), size, hashlib.sha256(content).hexdigest())


def _write_body(pieces: Iterable[bytes], folder: Path) -> Body:
    """Writes a large body to a file."""
    total, size = hashlib.sha256(), 0
    file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it outlives this
    try:
        for piece in pieces:
            total.update(piece)
            size += len(piece)
            file.write(piece)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return Body(file, size, total.hexdigest())


OWNED = "/"  # neither a client's name nor a tensor's can hold one
MEMORY = "@memory"  # no client can have this name


class PrefixedArrays(Mapping[str, Array]):
    """Arrays whose names have a prefix, under their names without it; read on access."""

    def __init__(self, arrays: Arrays, start: str) -> None:
        self._arrays, self._start = arrays, start
        self._names = dict.fromkeys(name.removeprefix(start) for name in arrays if name.startswith(start))

    def __getitem__(self, name: str) -> Array:
        return self._arrays[self._start + name]

    def form(self, name: str) -> Form:
        return array_form(self._arrays, self._start + name)

    def part(self, name: str, begin: int, end: int) -> Array:
        return array_part(self._arrays, self._start + name, begin, end)

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the array
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CommonArrays(PrefixedArrays):
    """Arrays that belong to no single client."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays, "")
        self._names = dict.fromkeys(name for name in arrays if OWNED not in name)


def pack_state(state: State) -> Parameters:
    """Packs a state, without its `latest` scalars, into the arrays and scalars of one file."""
    owned = {f"{client}{OWNED}{n}": value for client, arrays in state.own.items() for n, value in arrays.items()}
    remembered = {f"{MEMORY}{OWNED}{name}": value for name, value in state.memory.items()}
    return Parameters({**state.arrays, **owned, **remembered}, state.scalars)


def unpack_state(content: Parameters, latest: Mapping[str, Scalars]) -> State:
    """Restores a packed state, whose arrays stay as lazy as those of the file."""
    clients = {name.partition(OWNED)[0] for name in content.arrays if OWNED in name} - {MEMORY}
    own = {client: PrefixedArrays(content.arrays, client + OWNED) for client in sorted(clients)}
    memory = PrefixedArrays(content.arrays, MEMORY + OWNED)
    return State(CommonArrays(content.arrays), content.scalars, latest, own, memory)
