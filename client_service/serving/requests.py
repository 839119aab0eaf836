"""What a request asks the recommender for: limits, filters in words, baskets; and a list as it was looked up."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.errors import Fault, ProtocolError

DEEPEST = 1000  # items down to which a list can be asked for
MOST_LISTED = 100_000  # items of all lists of one answer together: some 60 MB while it is written
POOL = 200  # best items that are put into another order by mmr and freshness: as many as a list holds

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class ListRequest:
    """What a request asks for: how many, whether to leave out seen items, and a mask (N,) of forbidden items.

    offset: how many of the best come before the first that is answered. mmr, freshness: weights in [0, 1] of being
    unlike the items before, and of being new; with either the best POOL items are put into another order. explain: say
    which of the user's items count most for each. raw: the model's own score instead of the relevance.
    """

    k: int
    exclude_seen: bool = True
    forbidden: Mask | None = None
    offset: int = 0
    mmr: float = 0.0
    freshness: float = 0.0
    explain: bool = False
    raw: bool = False

    @property
    def rearranged(self) -> bool:
        """Is the order another one than by score?"""
        return self.mmr > 0.0 or self.freshness > 0.0

    @property
    def depth(self) -> int:
        """How many of the best have to be known."""
        return POOL if self.rearranged else self.offset + self.k

    @property
    def costly(self) -> bool:
        """Is there more to compute than a look-up, even where the list is at hand?"""
        return self.rearranged or self.explain or self.forbidden is not None

    def require_reachable(self) -> None:
        """ProtocolError for items further down than any list goes."""
        most, where = (POOL, " with mmr or freshness") if self.rearranged else (DEEPEST, "")
        if self.offset + self.k > most:
            told = f"offset + k: expected at most {most}{where}, got {self.offset + self.k}"
            raise ProtocolError(told, faults=(Fault("out-of-range", "offset", told),))


@dataclass(frozen=True)
class Basket:
    """Items of somebody who is in no graph, and what is asked for."""

    items: tuple[str, ...]
    limits: ListRequest


class Listed(NamedTuple):
    """A known user's list as it was looked up: the model's version, rows of items and their scores; and the id and the
    title of every row, where there are titles."""

    version: str
    rows: list[int]
    scores: list[float]
    ids: Sequence[str]
    titles: Sequence[str | None] | None

    @property
    def items(self) -> list[tuple[str, float, str | None]]:
        """Each item's id, score and title."""
        titles = self.titles
        return [
            (self.ids[row], score, None if titles is None else titles[row])
            for row, score in zip(self.rows, self.scores, strict=True)
        ]


EXPECTED: Final = r"filter: expected KEY:VALUE or KEY:VALUE|VALUE, with \ before a :, | or \ that belongs to one"
MOST_FILTERS, LONGEST_FILTER, MOST_VALUES = 20, 2000, 100
KEY: Final = re.compile(r"((?:[^:\\]|\\.)+):(.+)", re.DOTALL)
VALUE: Final = re.compile(r"((?:[^|\\]|\\.)+)(\||$)", re.DOTALL)
ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def parse_filters(filters: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each key with its values. ProtocolError for what has another form; it does not quote what came."""
    return tuple(_parse_filter(one) for one in filters)


def _parse_filter(text: str) -> tuple[str, tuple[str, ...]]:
    parted = KEY.fullmatch(text)
    if parted is None:
        raise _wrong_form(f"{EXPECTED}, got another form")
    values, place, rest = [], 0, parted[2]
    while place < len(rest) or rest.endswith("|"):
        found = VALUE.match(rest, place)
        if found is None:
            raise _wrong_form(f"{EXPECTED}, got a value that is empty or ends in \\")
        values.append(_unescape(found[1]))
        place = found.end()
        if not found[2]:
            break
    if len(values) > MOST_VALUES:
        told = f"filter: expected at most {MOST_VALUES} values of a key, got {len(values)}"
        raise ProtocolError(told, faults=(Fault("out-of-range", "filter", told),))
    return _unescape(parted[1]), tuple(dict.fromkeys(values))


def _wrong_form(told: str) -> ProtocolError:
    return ProtocolError(told, faults=(Fault("wrong-form", "filter", told),))


def _unescape(text: str) -> str:
    return unicodedata.normalize("NFC", ESCAPED.sub(r"\1", text))
