"""Texts and ids of rows, mapped: the text of a row, and the row of an id by a table of hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any, Final, overload
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.arrays import Arrays
from client_service.data.ids import normalise_id

END: Final = 0x0A  # after each text that is searched; no word holds it
AT_ONCE: Final = 4  # letters that are compared everywhere; few places are left for the others
Rows = NDArray[np.int64]


def text_arrays(name: str, texts: Sequence[str | None]) -> dict[str, NDArray[Any]]:
    """The arrays of texts under this name; None is another text than the empty one."""
    written = b"".join(encoded := [b"" if text is None else text.encode() for text in texts])
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(texts)), out=offsets[1:])
    arrays: dict[str, NDArray[Any]] = {
        f"{name}-bytes": np.frombuffer(written, dtype=np.uint8),
        f"{name}-offsets": offsets,
    }
    if any(text is None for text in texts):
        arrays[f"{name}-missing"] = np.array([text is None for text in texts], dtype=np.uint8)
    return arrays


class Texts(Sequence[str | None]):
    """Texts in the order that they were written in, read where they are mapped."""

    def __init__(self, arrays: Arrays, name: str) -> None:
        content, offsets = arrays[f"{name}-bytes"], arrays[f"{name}-offsets"]
        if content.dtype != np.uint8 or offsets.dtype != np.int64 or len(offsets) < 1 or offsets[-1] != len(content):
            raise ValueError(f"bytes and offsets of texts in {name}-*.npy, got others")
        missing = arrays.get(f"{name}-missing")
        self._count = len(offsets) - 1
        self._bytes, self._offsets = content.data, offsets.data
        self._missing = None if missing is None else missing.data

    @property
    def views(self) -> tuple[memoryview, memoryview]:
        """The bytes, and where each text begins."""
        return self._bytes, self._offsets

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> str | None: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[str | None, ...]: ...
    def __getitem__(self, row: int | slice) -> str | tuple[str | None, ...] | None:
        if isinstance(row, slice):
            return tuple(self[one] for one in range(self._count)[row])
        if row < 0:
            row += self._count
        if not 0 <= row < self._count:
            raise IndexError("expected the row of a text, got one beyond them")
        if self._missing is not None and self._missing[row]:
            return None
        offsets = self._offsets
        return self._bytes[offsets[row] : offsets[row + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str | None]:
        return (self[row] for row in range(self._count))


def compose(text: str) -> str:
    """The same text, each character in one piece (NFC): what a filter is compared by."""
    return text if text.isascii() else normalize("NFC", text)


def fold(text: str) -> str:
    """What two texts are compared by: NFKC and full case folding of Unicode.

    `STRASSE` is `Straße`, a sigma at the end of a word is a sigma, composed and decomposed accents are the same, and so
    are letters of full width. An accent that is not there makes another letter: `cafe` is not `café`.
    """
    if text.isascii():
        return text.lower()
    # Twice: folding can take apart what was composed, and composing can give a letter that folds.
    return normalize("NFKC", normalize("NFKC", normalize("NFD", text).casefold()).casefold())


def search_arrays(name: str, texts: Sequence[str | None]) -> dict[str, NDArray[Any]]:
    """The arrays by which the texts are searched: each folded, with an END behind it."""
    return text_arrays(name, [("" if text is None else fold(text)).replace("\n", " ") + "\n" for text in texts])


class FoldedTexts:
    """Folded texts, in which words are found."""

    def __init__(self, arrays: Arrays, name: str) -> None:
        """Those that `search_arrays` has written under this name."""
        self._content: NDArray[np.uint8] = arrays[f"{name}-bytes"]
        self._offsets: Rows = arrays[f"{name}-offsets"]

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> FoldedTexts:
        """Those of texts in memory."""
        return cls(search_arrays("texts", texts), "texts")

    def holding(self, word: str) -> NDArray[np.bool_]:
        """Which texts hold a folded word, (N,)."""
        found = np.zeros(len(self._offsets) - 1, dtype=bool)
        letters = np.frombuffer(word.encode(errors="surrogatepass"), dtype=np.uint8)
        if (last := len(self._content) - len(letters) + 1) <= 0 or not len(letters):
            return found
        begins = self._content[:last] == letters[0]
        for at, letter in enumerate(letters[1:AT_ONCE], 1):
            begins &= self._content[at : at + last] == letter
        places = np.flatnonzero(begins)
        for at, letter in enumerate(letters[AT_ONCE:], AT_ONCE):
            places = places[self._content[places + at] == letter]
        found[np.searchsorted(self._offsets, places, side="right") - 1] = True
        return found


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


KEPT_IDS = 8192  # ids that were asked for last, and their rows: most baskets hold the same items


class IdIndex(Sequence[str]):
    """Ids in row order. `row` finds one in some 2 microseconds; but for the last ones nothing of it is in this
    process's own memory."""

    def __init__(self, arrays: Arrays, name: str) -> None:
        self._texts = Texts(arrays, name)
        others, table = arrays[f"{name}-others"], arrays[f"{name}-table"]
        self._count = len(self._texts) - len(others)
        slots = 1 << max(3, (2 * len(self._texts)).bit_length())
        if table.dtype != np.uint32 or len(table) <= slots or table[-1] != EMPTY or self._count < 0:
            raise ValueError(f"a table of ids in {name}-table.npy, got another")
        self._bytes, self._offsets = self._texts.views
        salt = arrays[f"{name}-salt"].tobytes()
        self._find = _make_finder(table.data, slots - 1, salt, self._texts.views, others.tolist(), self._count)

    def row(self, text: str) -> int | None:
        """The row of an id, as it comes or else under its one spelling; None for an unknown one."""
        found = self._find(text)
        if found is None and (spelled := normalise_id(text)) != text:
            found = self._find(spelled)
        return found

    def rows(self, texts: Iterable[str]) -> list[int | None]:
        """The row of each of several ids."""
        find = self._find
        return [self.row(text) if (found := find(text)) is None else found for text in texts]

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


def _make_finder(
    table: memoryview, mask: int, salt: bytes, texts: tuple[memoryview, memoryview], others: list[int], count: int
) -> Callable[[str], int | None]:
    """Make the look-up of an id's row. It refers to no index, so that one that is out of use is freed at once."""
    content, offsets = texts

    def find(text: str) -> int | None:
        try:
            written = text.encode()
        except UnicodeEncodeError:  # a half of a pair of surrogates: no id holds one
            return None
        slot = int.from_bytes(blake2b(written, digest_size=8, salt=salt).digest(), "little") & mask
        while (place := table[slot]) != EMPTY:
            if content[offsets[place] : offsets[place + 1]].tobytes() == written:
                return place if place < count else others[place - count]
            slot += 1
        return None

    return lru_cache(maxsize=KEPT_IDS)(find)
