"""Digests of the parts of a body, by which a range is checked alone.

A body that lies in a bucket is read in ranges by several workers, and the bucket's writers are not trusted. So the
worker that receives it computes a digest of every PART_BYTES, which lie beside the receipt, in the database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from aggregator_service.storage.records import StoredUpdate
from shared.errors import DamagedError

PART_BYTES = 1 << 15
DIGEST_BYTES = 32


class PartDigests:
    """Digests of the parts of a body that comes in pieces of any length."""

    def __init__(self) -> None:
        self._found, self._part, self._room = bytearray(), hashlib.sha256(), PART_BYTES

    def update(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            taken, rest = rest[: self._room], rest[self._room :]
            self._part.update(taken)
            self._room -= len(taken)
            if self._room == 0:
                self._end_part()

    def finish(self) -> bytes:
        """Returns all digests, one behind the other."""
        if self._room < PART_BYTES:
            self._end_part()
        return bytes(self._found)

    def _end_part(self) -> None:
        self._found += self._part.digest()
        self._part, self._room = hashlib.sha256(), PART_BYTES


@dataclass(frozen=True)
class BodyRange:
    """Bytes `begin` to `end` of a stored body.

    size: of the body in bytes. parts: digests of its parts.
    """

    name: str
    begin: int
    end: int
    size: int
    parts: bytes

    @property
    def is_inside(self) -> bool:
        """Whether the body has such bytes."""
        return 0 <= self.begin <= self.end <= self.size

    @property
    def whole_begin(self) -> int:
        """First byte of the first part that is needed to check the range."""
        return self.begin - self.begin % PART_BYTES

    @property
    def whole_end(self) -> int:
        """Byte behind the last part that is needed to check the range."""
        return min(self.end + -self.end % PART_BYTES, self.size)

    def cut(self, content: bytes) -> memoryview | None:
        """Returns the range of checked parts; None if they are not as they came."""
        if not self.is_inside or len(content) != self.whole_end - self.whole_begin:
            return None
        first, view = self.whole_begin // PART_BYTES, memoryview(content)
        for number in range(-(-len(content) // PART_BYTES)):
            digest = hashlib.sha256(view[number * PART_BYTES : (number + 1) * PART_BYTES]).digest()
            if digest != self.parts[(first + number) * DIGEST_BYTES :][:DIGEST_BYTES]:
                return None
        return view[self.begin - self.whole_begin : self.end - self.whole_begin]


class DamagedUpdatesError(DamagedError):
    """Stored updates are no longer as they came."""

    def __init__(self, updates: Sequence[StoredUpdate]) -> None:
        super().__init__(f"expected the updates as they came, got {len(updates)} others or none")
        self.updates = updates
