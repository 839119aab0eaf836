"""Ids in row order, and the row of an id: a mapped table of hashes in the place of a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.arrays import Arrays
from client_service.compiled.texts import Texts, text_arrays
from client_service.data.ids import normalise_id

EMPTY: Final = 0xFFFFFFFF  # no id has this place of the table
SALT_BYTES: Final = 16


def id_arrays(name: str, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an index of these ids under this name.

    Behind the ids are the spellings of those that are written otherwise, where no id is written so.
    """
    exact = frozenset(ids)
    others = {spelled: row for row, one in enumerate(ids) if (spelled := normalise_id(one)) != one}
    others = {spelled: row for spelled, row in others.items() if spelled not in exact}
    texts = [*ids, *others]
    arrays = text_arrays(name, texts)
    salt = sha256(arrays[f"{name}-bytes"].data).digest()[:SALT_BYTES]  # nobody else knows where an id of theirs lies
    hashes = np.frombuffer(
        b"".join(blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in texts), dtype="<u8"
    )
    slots = 1 << max(3, (2 * len(texts)).bit_length())
    homes = (hashes & np.uint64(slots - 1)).astype(np.int64)
    order = np.argsort(homes, kind="stable")
    steps = np.arange(len(texts))
    places = np.maximum.accumulate(homes[order] - steps) + steps  # the first free one from its own on
    table = np.full(max(slots, int(places.max(initial=0)) + 1) + 1, EMPTY, dtype=np.uint32)
    table[places] = order
    return {
        **arrays,
        f"{name}-table": table,
        f"{name}-others": np.array(list(others.values()), dtype=np.int64),
        f"{name}-salt": np.frombuffer(salt, dtype=np.uint8),
    }


class IdIndex(Sequence[str]):
    """Ids in row order. `row` finds one in some 2 microseconds, and nothing of it is in this process's own memory."""

    def __init__(self, arrays: Arrays, name: str) -> None:
        self._texts = Texts(arrays, name)
        others, table = arrays[f"{name}-others"], arrays[f"{name}-table"]
        self._salt = arrays[f"{name}-salt"].tobytes()
        self._count = len(self._texts) - len(others)
        self._others = others.tolist()
        slots = 1 << max(3, (2 * len(self._texts)).bit_length())
        if table.dtype != np.uint32 or len(table) <= slots or table[-1] != EMPTY or self._count < 0:
            raise ValueError(f"a table of ids in {name}-table.npy, got another")
        self._table, self._mask = table.data, slots - 1
        self._bytes, self._offsets = self._texts.views

    def row(self, text: str) -> int | None:
        """The row of an id, as it comes or else under its one spelling; None for an unknown one."""
        found = self._find(text)
        if found is None and (spelled := normalise_id(text)) != text:
            found = self._find(spelled)
        return found

    def __contains__(self, text: object) -> bool:
        """Is it an id, in whatever spelling?"""
        return isinstance(text, str) and self.row(text) is not None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[str, ...]: ...
    def __getitem__(self, row: int | slice) -> str | tuple[str, ...]:
        if isinstance(row, slice):
            return tuple(self[one] for one in range(self._count)[row])
        if row < 0:
            row += self._count
        if not 0 <= row < self._count:
            raise IndexError("expected the row of an id, got one beyond them")
        offsets = self._offsets
        return self._bytes[offsets[row] : offsets[row + 1]].tobytes().decode()

    def _find(self, text: str) -> int | None:
        try:
            written = text.encode()
        except UnicodeEncodeError:  # a half of a pair of surrogates: no id holds one
            return None
        table, offsets = self._table, self._offsets
        slot = int.from_bytes(blake2b(written, digest_size=8, salt=self._salt).digest(), "little") & self._mask
        while (place := table[slot]) != EMPTY:
            if self._bytes[offsets[place] : offsets[place + 1]].tobytes() == written:
                return place if place < self._count else self._others[place - self._count]
            slot += 1
        return None
