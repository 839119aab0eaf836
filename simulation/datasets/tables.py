"""Named columns of one file, each row with the line it came from -> checked events and titles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from client_service.shard.events import MET, SPLITS
from client_service.shard.ids import find_unusable_ids
from client_service.shard.times import TIMES, are_milliseconds, parse_times
from simulation.datasets.content import line_error

COLUMNS = {
    "session": ("session", "session_id", "sessionid", "user", "user_id", "userid"),
    "user": ("user", "user_id", "userid"),
    "item": ("item", "item_id", "itemid", "movie", "movie_id", "movieid"),
    "split": ("split",),
    "time": ("time", "timestamp"),
    "rating": ("rating",),
    "title": ("title", "item_title", "movie_title", "name", "item_name"),
}
ID_NAMES = frozenset(name for field in ("session", "user", "item", "split") for name in COLUMNS[field])
DETAIL_NAMES = frozenset(name for field in ("time", "rating") for name in COLUMNS[field])


def is_title(name: str) -> bool:
    """Whether a column of this name may hold titles: "app_name" may."""
    return "title" in name or "name" in name


def is_read(name: str) -> bool:
    """Whether anything is read from a column of this name."""
    return name in ID_NAMES or name in DETAIL_NAMES or is_title(name)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns under lower-case names: ids, splits and titles as strings, times and ratings as the file has them.

    line: the line (from 1) on which each row stands in the file.
    """

    path: Path
    columns: dict[str, pl.Series]
    line: pl.Series

    def event_table(self) -> pl.DataFrame:
        """(user, item), and split, time (seconds since 1970 UTC) and rating where the file has such columns.

        Raises DataError with the line of the first value that is missing or of another kind.
        """
        optional = {"split": self._checked_splits, "time": self._parsed_times, "rating": self._parsed_ratings}
        columns = {name: self._required_column(name) for name in ("user", "item")}
        columns |= {
            name: read(column) for name, read in optional.items() if (column := self._find_column(name)) is not None
        }
        return pl.DataFrame(columns)

    def click_table(self) -> pl.DataFrame:
        """(session, item, time), time in seconds since 1970 UTC. Where no column names sessions, one of users does."""
        columns = {name: self._required_column(name) for name in ("session", "item")}
        times = self._required_column("time", of_ids=False)
        return pl.DataFrame({**columns, "time": self._parsed_times(times)})

    def title_table(self) -> pl.DataFrame:
        """(item, title), with null where there is none."""
        items, titles = self._required_column("item"), self._find_column("title")
        if titles is None:
            return items.to_frame("item").with_columns(title=pl.lit(None, dtype=pl.String))
        return pl.DataFrame({"item": items, "title": titles.replace("", None)})

    def _find_column(self, field: str) -> pl.Series | None:
        """The column that goes by one of the field's names, if there is one."""
        names = [name for name in COLUMNS[field] if name in self.columns]
        if field == "title":
            names += [name for name in self.columns if is_title(name)]
        return self.columns[names[0]] if names else None

    def _required_column(self, field: str, *, of_ids: bool = True) -> pl.Series:
        column = self._find_column(field)
        if column is None:
            raise line_error(
                self.path, 1, f"expected a column {' or '.join(COLUMNS[field])}, got {self._known_names()}"
            )
        empty = column.is_null() | ((column == "").fill_null(True) if column.dtype == pl.String else False)
        self._require_none(empty, f"a value in the field {field!r}, got none")
        if of_ids and (found := find_unusable_ids(column)) is not None:
            self._require_none(found[0], f"in the field {field!r} {found[1]}")
        return column

    def time_notes(self) -> list[str]:
        """What is to be said of how times were read."""
        column = self._find_column("time")
        return ["times were read as milliseconds"] if column is not None and are_milliseconds(column) else []

    def _known_names(self) -> str:
        """The known names in the header. Others are not told: of a file without a header they would be ids."""
        known = [name for name in self.columns if name in ID_NAMES | DETAIL_NAMES | {*COLUMNS["title"]}]
        return f"none, but {', '.join(known)}" if known else "no known name: does the first line name the columns?"

    def _checked_splits(self, column: pl.Series) -> pl.Series:
        known = column.is_in((*SPLITS, MET)).fill_null(False)
        self._require_none(~known, "train, valid, test or met in the field 'split'")
        return column

    def _parsed_times(self, column: pl.Series) -> pl.Series:
        seconds, wrong = parse_times(column)
        self._require_none(wrong, f"{TIMES} in the field 'time', got something else")
        return seconds

    def _parsed_ratings(self, column: pl.Series) -> pl.Series:
        if column.dtype == pl.String:
            column = column.replace("", None)
        ratings = column.cast(pl.Float64, strict=False)
        wrong = ~column.is_null() & ~ratings.is_finite().fill_null(False)
        self._require_none(wrong, "a number in the field 'rating', got something else")
        return ratings

    def _require_none(self, wrong: pl.Series, expected: str) -> None:
        """DataError with the line of the first wrong row, where there is one."""
        if wrong.any():
            raise line_error(self.path, self.line[wrong.arg_max() or 0], f"expected {expected}")


def row_lines(count: int, first: int = 1) -> pl.Series:
    """The lines of `count` rows that stand one beneath the other."""
    return pl.Series(np.arange(first, first + count))


def table_of_fields(path: Path, names: Sequence[str], fields: pl.Series, line: pl.Series) -> Table:
    """Lists of fields (E,), each as long as `names`, -> their table. Raises DataError for a list of another length."""
    if fields.is_empty():
        raise line_error(path, 2, "expected data after the header, got none")
    wrong = fields.list.len() != len(names)
    if wrong.any():
        row = wrong.arg_max() or 0
        raise line_error(path, line[row], f"expected {len(names)} fields, got {len(fields[row])}")
    wanted = [(place, name) for place, name in enumerate(names) if is_read(name)]
    return Table(path, {name: fields.list.get(place).str.strip_chars() for place, name in wanted}, line)
