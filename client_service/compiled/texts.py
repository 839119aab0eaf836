"""Looks up texts of rows, and rows of ids, in mapped arrays.

A table of hashes finds the row of an id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b, sha256
from typing import Any, Final, overload
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.arrays import Arrays
from client_service.data.ids import normalise_id

AT_ONCE: Final = 4  # first bytes of a word that are compared at all places; the others only where these match
Rows = NDArray[np.int64]


def text_arrays(name: str, texts: Sequence[str | None]) -> dict[str, NDArray[Any]]:
    """Makes the arrays of texts under a name.

    None stays different from the empty text.
    """
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
    """Mapped texts in row order."""

    def __init__(self, arrays: Arrays, name: str) -> None:
        content, offsets = arrays[f"{name}-bytes"], arrays[f"{name}-offsets"]
        if content.dtype != np.uint8 or offsets.dtype != np.int64 or len(offsets) < 1 or offsets[-1] != len(content):
            raise ValueError(f"bytes and offsets of texts in {name}-*.npy, got other arrays")
        missing = arrays.get(f"{name}-missing")
        self._count = len(offsets) - 1
        self._bytes, self._offsets = content.data, offsets.data
        self._missing = None if missing is None else missing.data

    @property
    def views(self) -> tuple[memoryview, memoryview]:
        """Bytes of all texts, and the place where each begins."""
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
            raise IndexError(f"expected the row of a text, below {self._count:,}, got one outside")
        if self._missing is not None and self._missing[row]:
            return None
        offsets = self._offsets
        return self._bytes[offsets[row] : offsets[row + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str | None]:
        return (self[row] for row in range(self._count))


def compose(text: str) -> str:
    """Composes the characters of a text (NFC), as filters compare texts."""
    return text if text.isascii() else normalize("NFC", text)


def fold(text: str) -> str:
    """Folds a text by NFKC and full case folding of Unicode, as searches compare texts.

    `STRASSE` equals `Straße`, a final sigma equals any sigma, composed accents equal decomposed ones, and letters of
    full width equal the usual ones. A missing accent makes a difference: `cafe` does not equal `café`.
    """
    if text.isascii():
        return text.lower()
    # Two rounds, since folding can decompose a composed letter, and composing can give a letter that folds.
    return normalize("NFKC", normalize("NFKC", normalize("NFD", text).casefold()).casefold())


def search_arrays(name: str, texts: Sequence[str | None]) -> dict[str, NDArray[Any]]:
    """Makes the arrays in which words are searched: each text folded, then a line feed."""
    return text_arrays(name, [("" if text is None else fold(text)).replace("\n", " ") + "\n" for text in texts])


class FoldedTexts:
    """Folded texts, in which words are searched."""

    def __init__(self, arrays: Arrays, name: str) -> None:
        """Takes the arrays that `search_arrays` has made under a name."""
        self._content: NDArray[np.uint8] = arrays[f"{name}-bytes"]
        self._offsets: Rows = arrays[f"{name}-offsets"]

    @classmethod
    def from_texts(cls, texts: Sequence[str | None]) -> FoldedTexts:
        """Folds texts in memory."""
        return cls(search_arrays("texts", texts), "texts")

    def find_containing(self, word: str) -> NDArray[np.bool_]:
        """Finds the texts that contain a folded word, (N,)."""
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


EMPTY: Final = 0xFFFFFFFF  # marks a slot of the table that no id has
SALT_BYTES: Final = 16


def id_arrays(name: str, ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Makes the arrays of an index of ids under a name.

    An id that is not in its normalised spelling also gets an entry for that spelling, unless another id is written so.
    These entries come after all ids.
    """
    exact = frozenset(ids)
    others = {spelled: row for row, one in enumerate(ids) if (spelled := normalise_id(one)) != one}
    others = {spelled: row for spelled, row in others.items() if spelled not in exact}
    texts = [*ids, *others]
    arrays = text_arrays(name, texts)
    # The salt follows from all ids, so that an outsider cannot choose ids that collide in the table.
    salt = sha256(arrays[f"{name}-bytes"].data).digest()[:SALT_BYTES]
    hashes = np.frombuffer(
        b"".join(blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in texts), dtype="<u8"
    )
    slots = 1 << max(3, (2 * len(texts)).bit_length())
    homes = (hashes & np.uint64(slots - 1)).astype(np.int64)
    order = np.argsort(homes, kind="stable")
    steps = np.arange(len(texts))
    places = np.maximum.accumulate(homes[order] - steps) + steps  # each text takes the first free slot from its home on
    table = np.full(max(slots, int(places.max(initial=0)) + 1) + 1, EMPTY, dtype=np.uint32)
    table[places] = order
    return {
        **arrays,
        f"{name}-table": table,
        f"{name}-others": np.array(list(others.values()), dtype=np.int64),
        f"{name}-salt": np.frombuffer(salt, dtype=np.uint8),
    }


KEPT_IDS = 1 << 15  # ids whose rows stay in memory, some 4 MB: most baskets hold the same items


class IdIndex(Sequence[str]):
    """Mapped ids in row order, with a hash table.

    `row` finds an id in about 2 microseconds, and one that was asked for before in a tenth of that. Of the process's
    own memory the index takes only what `KEPT_IDS` ids need: when these are full, they begin anew.
    """

    def __init__(self, arrays: Arrays, name: str) -> None:
        self._texts = Texts(arrays, name)
        others, table = arrays[f"{name}-others"], arrays[f"{name}-table"]
        self._count = len(self._texts) - len(others)
        slots = 1 << max(3, (2 * len(self._texts)).bit_length())
        if table.dtype != np.uint32 or len(table) <= slots or table[-1] != EMPTY or self._count < 0:
            raise ValueError(f"a table of ids in {name}-table.npy, got another array")
        self._bytes, self._offsets = self._texts.views
        salt = arrays[f"{name}-salt"].tobytes()
        self._find = _make_finder(table.data, slots - 1, salt, self._texts.views, others.tolist(), self._count)
        self._known: dict[str, int] = {}

    def row(self, text: str) -> int | None:
        """Finds the row of an id; None for an unknown one.

        The id is looked up as it is, then in its normalised spelling.
        """
        found = self._known.get(text)
        return self._look_up(text) if found is None else found

    def rows(self, texts: Iterable[str]) -> list[int | None]:
        """Finds the row of each of several ids; None for unknown ones."""
        known = self._known
        return [self._look_up(text) if (found := known.get(text)) is None else found for text in texts]

    def _look_up(self, text: str) -> int | None:
        found = self._find(text)
        if found is None and (spelled := normalise_id(text)) != text:
            found = self._find(spelled)
        if found is not None:
            if len(self._known) >= KEPT_IDS:
                self._known = {}
            self._known[text] = found
        return found

    def __contains__(self, text: object) -> bool:
        """Checks if a text is an id, in any spelling."""
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
            raise IndexError(f"expected the row of an id, below {self._count:,}, got one outside")
        offsets = self._offsets
        return self._bytes[offsets[row] : offsets[row + 1]].tobytes().decode()


def _make_finder(
    table: memoryview, mask: int, salt: bytes, texts: tuple[memoryview, memoryview], others: list[int], count: int
) -> Callable[[str], int | None]:
    """Makes the function that finds the row of an id.

    The function refers to no index, so that an unused index is freed at once.
    """
    content, offsets = texts

    def find(text: str) -> int | None:
        try:
            written = text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which no id contains
            return None
        slot = int.from_bytes(blake2b(written, digest_size=8, salt=salt).digest(), "little") & mask
        while (place := table[slot]) != EMPTY:
            if content[offsets[place] : offsets[place + 1]].tobytes() == written:
                return place if place < count else others[place - count]
            slot += 1
        return None

    return find
