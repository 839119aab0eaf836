"""Parameters -> a body to be answered; a state <-> the arrays and scalars of one file."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aggregator_service.process import run_in_worker
from aggregator_service.storage.disk import Disk
from shared.method.parameters import Array, Arrays, Form, Parameters, Scalars, State, form, part
from shared.protocol.wire import pieces

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
            while piece := await run_in_worker(self.file.read, CHUNK):
                yield piece
        finally:
            self.close()

    def read_small(self) -> bytes | None:
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
        with disk.translate_errors("an answer to be stored"):
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


OWNED = "/"  # neither a client's name nor a tensor's can hold one
MEMORY = "@memory"  # no client can have this name


class PrefixedArrays(Mapping[str, Array]):
    """Those of the arrays whose names start so, without that start; each read when asked for."""

    def __init__(self, arrays: Arrays, start: str) -> None:
        self._arrays, self._start = arrays, start
        self._names = dict.fromkeys(name.removeprefix(start) for name in arrays if name.startswith(start))

    def __getitem__(self, name: str) -> Array:
        return self._arrays[self._start + name]

    def form(self, name: str) -> Form:
        return form(self._arrays, self._start + name)

    def part(self, name: str, begin: int, end: int) -> Array:
        return part(self._arrays, self._start + name, begin, end)

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the array
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CommonArrays(PrefixedArrays):
    """The arrays that belong to no client."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays, "")
        self._names = dict.fromkeys(name for name in arrays if OWNED not in name)


def pack_state(state: State) -> Parameters:
    """Everything of a state but its `latest`, as one file holds it."""
    owned = {f"{client}{OWNED}{n}": value for client, arrays in state.own.items() for n, value in arrays.items()}
    remembered = {f"{MEMORY}{OWNED}{name}": value for name, value in state.memory.items()}
    return Parameters({**state.arrays, **owned, **remembered}, state.scalars)


def unpack_state(content: Parameters, latest: Mapping[str, Scalars]) -> State:
    """The state that was packed, its arrays as lazy as the content's."""
    clients = {name.partition(OWNED)[0] for name in content.arrays if OWNED in name} - {MEMORY}
    own = {client: PrefixedArrays(content.arrays, client + OWNED) for client in sorted(clients)}
    memory = PrefixedArrays(content.arrays, MEMORY + OWNED)
    return State(CommonArrays(content.arrays), content.scalars, latest, own, memory)
