"""Reads a silo's compiled data: ids, titles, features, pairs and times.

The arrays are mapped from a compiled folder.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.arrays import Arrays, folder_error, open_arrays
from client_service.compiled.texts import FoldedTexts, IdIndex, Texts, compose
from client_service.data.ratings import RatingScale

FORMAT: Final = "lpsfed-compiled-shard/1"
KIND: Final = "shard"
NO_TIME: Final = int(np.iinfo(np.int64).min)  # stands for a time that is not known
Rows = NDArray[np.int64]
Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]


class CompiledHead(BaseModel):
    """Description of the arrays of a compiled shard.

    digest: digest of the positives that models learn from. kept_digest: digest of the positives on the disk, under
    which models are kept. lists_digest: digest of all data that lists follow from. features: names of the items'
    features, and whether each is a number or a text. unmet: number of items without interactions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["lpsfed-compiled-shard/1"] = FORMAT
    task: str
    name: str
    digest: str
    kept_digest: str
    lists_digest: str
    users: int
    items: int
    rating: RatingScale | None
    titles: bool
    times: bool
    met_times: bool
    freshness: bool
    features: tuple[tuple[str, Literal["number", "text"]], ...]
    unmet: int = 0


class RowLists:
    """Lists of item rows for some users, ascending, with optional times."""

    def __init__(self, arrays: Arrays, name: str, count: int, *, times: bool = False) -> None:
        indptr, self.indices = arrays[f"{name}-indptr"], arrays[f"{name}-indices"]
        self.times: Rows | None = arrays[f"{name}-times"] if times else None
        lengths = {len(self.indices), *(() if self.times is None else (len(self.times),))}
        if indptr.dtype != np.int64 or len(indptr) != count + 1 or lengths != {int(indptr[-1])}:
            raise ValueError(f"lists of {count:,} rows in {name}-*.npy, got others")
        self.indptr, self._starts = indptr, indptr.data

    def __len__(self) -> int:
        return len(self._starts) - 1

    def row(self, place: int) -> Rows:
        """Returns the items of a user, ascending."""
        found: Rows = self.indices[self._starts[place] : self._starts[place + 1]].astype(np.int64)
        return found

    def time(self, place: int, item: int) -> int | None:
        """Looks up the time of a user's pair with an item.

        In seconds since 1970, UTC. None for a missing pair, and for a pair without a time.
        """
        if self.times is None:
            return None
        first, last = self._starts[place], self._starts[place + 1]
        at = first + int(np.searchsorted(self.indices[first:last], item))
        if at >= last or self.indices[at] != item or (found := int(self.times[at])) == NO_TIME:
            return None
        return found


class Feature:
    """One feature of all items, as numbers or texts.

    NaN among numbers means that there is none.
    """

    def __init__(self, arrays: Arrays, name: str, kind: Literal["number", "text"]) -> None:
        self._column = arrays[name]
        self._texts = Texts(arrays, f"{name}-texts") if kind == "text" else None

    def equal_to(self, text: str, number: float | None) -> Mask:
        """Finds the items (N,) that have a text or a number.

        text: in composed form (NFC), for a feature of texts. number: for a feature of numbers.
        """
        if self._texts is None:
            return np.zeros(len(self._column), dtype=bool) if number is None else self._column == number
        first, last = (find(self._texts, text, key=_compose_known) for find in (bisect_left, bisect_right))
        found: Mask = (self._column >= first) & (self._column < last)
        return found

    def value_at(self, row: int) -> str | float | None:
        """Looks up the value of an item; None for an item without one."""
        value = self._column[row]
        if self._texts is None:
            return None if np.isnan(value) else float(value)
        return None if value < 0 else self._texts[int(value)]


class UnmetItems:
    """Items of the silo's catalogue without interactions when the shard was written.

    Their rows come after those of the others. A met event gives an item no row among the others.
    """

    def __init__(self, head: CompiledHead, arrays: Arrays, others: int) -> None:
        """Opens the arrays of a compiled shard; raises ValueError for others.

        others: number of users without a row.
        """
        self.first, self.count = head.items, head.unmet
        self._met, self._met_by_others = (
            RowLists(arrays, "unmet-met", head.users),
            RowLists(arrays, "unmet-met-only", others),
        )
        self.ids, self.titles = IdIndex(arrays, "unmet"), Texts(arrays, "unmet-titles")
        self.features = {
            name: Feature(arrays, f"unmet-feature-{place}", kind) for place, (name, kind) in enumerate(head.features)
        }
        self.search_arrays = {
            name.removeprefix("unmet-"): one for name, one in arrays.items() if name.startswith("unmet-search-")
        }
        self._folded = FoldedTexts(arrays, "unmet-folded")
        if {len(self.ids), len(self.titles)} != {self.count}:
            raise ValueError(f"{self.count:,} unmet items, got others")

    def row(self, item_id: str) -> int | None:
        """Finds the row of an unmet item; None for another one."""
        place = self.ids.row(item_id)
        return None if place is None else self.first + place

    def met_by(self, user_row: int | None, other_row: int | None) -> frozenset[str]:
        """Lists the unmet items in a user's later met events, by id."""
        lists, place = (self._met_by_others, other_row) if user_row is None else (self._met, user_row)
        return frozenset() if place is None else frozenset(self.ids[one] for one in lists.row(place).tolist())

    def id_of(self, row: int) -> str:
        """Looks up the id of an unmet item."""
        return self.ids[row - self.first]

    def title_of(self, row: int) -> str | None:
        """Looks up the title of an unmet item."""
        return self.titles[row - self.first]

    def facts_of(self, row: int) -> dict[str, str | float]:
        """Looks up the features of an unmet item, by name."""
        values = ((name, feature.value_at(row - self.first)) for name, feature in self.features.items())
        return {name: value for name, value in values if value is not None}

    def find_containing(self, words: Sequence[str]) -> Rows:
        """Finds the unmet items whose titles contain all of some folded words; their rows, ascending."""
        found = np.ones(self.count, dtype=bool)
        for word in words:
            found &= self._folded.find_containing(word)
        return self.first + np.flatnonzero(found)


def _compose_known(text: str | None) -> str:
    return compose(text or "")


class CompiledShard:
    """Compiled data of a silo with M users and N items.

    Large arrays are mapped. Processes share them, and no process writes them. train: training items of each user.
    known_pairs: all items that a user has interacted with. met: items of a user's met events, which are not positive.
    popularity: (N,), number of users who have an item in training. freshness: (N,) in [0, 1], None without times.
    met_only_users: users with met events alone, who have no row. search_arrays: of the index of titles and
    features, see `client_service.text.search`; none in a silo without titles.
    """

    def __init__(self, head: CompiledHead, arrays: Arrays) -> None:
        """Takes the arrays of a compiled shard.

        ValueError, with what was expected, for arrays that do not fit the head.
        """
        self.head = head
        self.name, self.task, self.rating = head.name, head.task, head.rating
        self.digest, self.kept_digest, self.lists_digest = head.digest, head.kept_digest, head.lists_digest
        self.user_ids, self.item_ids = IdIndex(arrays, "users"), IdIndex(arrays, "items")
        self.met_only_users = IdIndex(arrays, "met-users")
        self.train, self.known_pairs = (RowLists(arrays, name, head.users) for name in ("train", "known"))
        self.met = RowLists(arrays, "met", head.users, times=head.met_times)
        self._met_by_others = RowLists(arrays, "met-only", len(self.met_only_users), times=head.met_times)
        self._positives = RowLists(arrays, "liked", head.users, times=True) if head.times else None
        self.popularity: Float32 = arrays["popularity"]
        self.freshness: Float32 | None = arrays["freshness"] if head.freshness else None
        self.titles = Texts(arrays, "titles") if head.titles else None
        self.features = {
            name: Feature(arrays, f"feature-{place}", kind) for place, (name, kind) in enumerate(head.features)
        }
        self.unmet = UnmetItems(head, arrays, len(self.met_only_users)) if head.unmet else None
        self.search_arrays = {name: array for name, array in arrays.items() if name.startswith("search-")}
        self._folded = FoldedTexts(arrays, "folded") if head.titles else None
        sizes = (len(self.user_ids), len(self.item_ids), len(self.popularity))
        if sizes != (head.users, head.items, head.items) or (self.titles and len(self.titles) != head.items):
            raise ValueError(f"{head.users:,} users and {head.items:,} items, got others")

    def user_row(self, user_id: str) -> int | None:
        """Finds the row of a user; None for an id without a row."""
        return self.user_ids.row(user_id)

    def item_row(self, item_id: str) -> int | None:
        """Finds the row of an item; None for an item outside the catalogue."""
        return self.item_ids.row(item_id)

    def met_items(self, user_id: str) -> Rows:
        """Lists the items of a user's met events, which are not positive, ascending.

        Users without a positive, and so without a row, are also known here.
        """
        if (row := self.user_row(user_id)) is not None:
            return self.met.row(row)
        other = self.met_only_users.row(user_id)
        return np.zeros(0, dtype=np.int64) if other is None else self._met_by_others.row(other)

    def find_met_unlisted_items(self, user_id: str) -> frozenset[str]:
        """Lists the unmet items in a user's later met events, by id."""
        if self.unmet is None:
            return frozenset()
        return self.unmet.met_by(self.user_row(user_id), self.met_only_users.row(user_id))

    def positive_time(self, user_row: int, item_row: int) -> int | None:
        """Looks up the time of a positive in any split, in seconds since 1970, UTC.

        None for a missing positive, and for one without a time.
        """
        return None if self._positives is None else self._positives.time(user_row, item_row)

    def met_time(self, user_id: str, item_row: int) -> int | None:
        """Looks up the time of a met event, which is not positive.

        In seconds since 1970, UTC. None for a missing pair, and for one without a time.
        """
        if (row := self.user_row(user_id)) is not None:
            return self.met.time(row, item_row)
        other = self.met_only_users.row(user_id)
        return None if other is None else self._met_by_others.time(other, item_row)

    def find_item(self, item_id: str) -> int | None:
        """Finds the row of an item; None for an unknown one.

        Rows of unmet items come after all others.
        """
        row = self.item_row(item_id)
        return self.unmet.row(item_id) if row is None and self.unmet is not None else row

    def item_id(self, row: int) -> str:
        """Looks up the id of an item, or of an unmet one."""
        return self.item_ids[row] if self.unmet is None or row < self.unmet.first else self.unmet.id_of(row)

    def titles_holding(self, word: str) -> Mask:
        """Finds the items (N,) whose titles contain a folded word."""
        return np.zeros(len(self.item_ids), dtype=bool) if self._folded is None else self._folded.find_containing(word)


def open_shard(folder: Path) -> CompiledShard:
    """Opens the compiled shard in a folder.

    DataError, with what to do, for a damaged folder or one of another kind.
    """
    head, arrays = open_arrays(folder, CompiledHead)
    try:
        return CompiledShard(head, arrays)
    except KeyError as error:
        raise folder_error(folder, f"a file {error.args[0]}.npy, got none") from None
    except ValueError as error:
        raise folder_error(folder, str(error)) from None
