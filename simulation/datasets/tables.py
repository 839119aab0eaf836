"""Table of one file: named columns, with the line of each row.

Columns are checked as events, clicks or titles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from client_service.data.events import MET, SPLITS
from client_service.data.id_columns import find_unusable_ids, normalise_ids
from client_service.data.ids import MISSING
from client_service.data.times import FINER, TIMES, find_unit, parse_micros, parse_times
from shared.errors import DataError
from shared.words import count_noun
from simulation.datasets.columns import (
    DEFAULT_OPTIONS,
    NUMBERS,
    OTHER_EVENTS,
    POSITIVE_EVENTS,
    FileOptions,
    is_title,
    plain_names,
)
from simulation.datasets.content import line_error

RATED = ("rating", "label", "count")  # fields that ratings come from, the first that is there
MOST_NAMES = 12  # of columns in one message
NO_GENRES = "(no genres listed)"  # MovieLens writes it where it knows none
SHOWN_VALUE = 40  # characters of a value that an error shows
ROWS_OF_EVIDENCE = 100  # that decide whether the first line is a header
FEWEST_ROWS = 3  # of fewer none may lack an id


@dataclass(frozen=True, eq=False)
class Table:
    """Table under lower-case column names.

    Ids, splits and titles are strings, times and ratings as in the file. line: line (from 1) of each row in the file.
    others: names of columns that are not read. has_names: are the names surely names, and no ids of a first line?
    """

    path: Path
    columns: dict[str, pl.Series]
    line: pl.Series
    file_options: FileOptions = DEFAULT_OPTIONS
    others: tuple[str, ...] = ()
    has_names: bool = False

    def read_events(self) -> tuple[pl.DataFrame, list[str]]:
        """Returns the checked events, and notes.

        (user, item), and split, time (seconds since 1970 UTC), rating, and positive (Boolean) where the file has such
        columns. positive: by the kind of event and the quantity; null where neither says anything. Raises DataError
        with the line of the first wrong value, or where many rows have no id.
        """
        table, notes = self._with_ids("user", "item")
        columns = {name: table._id_column(name) for name in ("user", "item")}
        readers = {"split": table._checked_splits, "time": table._parsed_times}
        columns |= {name: read(column) for name, read in readers.items() if (column := table._find(name)) is not None}
        rated = table.rating_field
        if (ratings := table._find(rated)) is not None:
            columns["rating"] = table._parsed_numbers(rated, ratings)
        verdicts = [
            verdict for verdict in (table._judge_events(notes), table._judge_quantities(notes)) if verdict is not None
        ]
        if verdicts:
            columns["positive"] = pl.DataFrame(verdicts).select(pl.all_horizontal(pl.all())).to_series()
        used = {"user", "item", "split", "time", "event", "quantity", rated}
        return pl.DataFrame(columns), [*self._time_notes(), *notes, *self._describe_unread(used)]

    @property
    def rating_field(self) -> str:
        """Field of the ratings: rating, label or count."""
        return next((role for role in RATED if self.column_name(role) is not None), RATED[0])

    def click_table(self) -> tuple[pl.DataFrame, list[str]]:
        """Returns the checked clicks (session, item, time), and notes.

        time: in microseconds since 1970 UTC. Where no column names sessions, one of users does.
        """
        table, notes = self._with_ids("session", "item")
        times = table._required("time")
        empty = times.is_null() | ((times == "").fill_null(True) if times.dtype == pl.String else False)
        table.require_none(empty, "a value in the field 'time', got none")
        micros, wrong = parse_micros(times)
        table.require_none(wrong, f"{TIMES} in the field 'time'", times)
        columns = {name: table._id_column(name) for name in ("session", "item")}
        return pl.DataFrame({**columns, "time": micros}), [*notes, *self._describe_unread({"session", "item", "time"})]

    def title_table(self) -> pl.DataFrame:
        """Makes the table of items with their titles and attributes.

        Columns: item, title and the attributes, with null where there is none.
        """
        table, _ = self._with_ids("item", strict=True)
        items, titles = table._id_column("item"), table._find("title")
        if titles is None:
            titles = pl.Series([None] * len(items), dtype=pl.String)
        attributes = {
            name: found
            for name, column in table.columns.items()
            if self.file_options.is_attribute(name) and (found := _attribute_values(name, column)) is not None
        }
        return pl.DataFrame({"item": items, "title": titles.replace("", None), **attributes})

    def find_column(self, role: str) -> pl.Series | None:
        """Returns the column of a field as it is in the file.

        None if there is none.
        """
        return self._find(role)

    def read_ids(self, role: str) -> pl.Series:
        """Returns the normalised ids of a field.

        Raises DataError with the line of the first invalid one.
        """
        return self._with_ids(role, strict=True)[0]._id_column(role)

    def _find(self, role: str) -> pl.Series | None:
        """Returns the column with one of the field's names, if there is one."""
        names = [name for name in self.file_options.names(role) if name in self.columns]
        if role == "title" and role not in self.file_options.columns:
            names += [name for name in self.columns if is_title(name)]
        if not names and self.file_options.columns.get(role):
            raise line_error(
                self.path,
                1,
                f"expected a column {self.file_options.columns[role]!r} (--columns), {self._describe_header()}",
            )
        return self.columns[names[0]] if names else None

    def _required(self, role: str) -> pl.Series:
        column = self._find(role)
        if column is None:
            expected = f"expected a column {' or '.join(self.file_options.names(role))}"
            raise line_error(
                self.path, 1, f"{expected}, {self._describe_header()}; --columns {role}=NAME names another"
            )
        return column

    def _describe_header(self) -> str:
        """Describes the names in the header for an error.

        Only common words are shown: without a header the others would be ids.
        """
        names = [*self.columns, *self.others]
        listed = names if self.has_names else plain_names(names)
        if not listed:
            return "got no known column name; the first line must name the columns"
        rest = len(names) - len(listed[:MOST_NAMES])
        return f"got the columns {', '.join(listed[:MOST_NAMES])}" + (f" and {rest} more" if rest else "")

    def _with_ids(self, *fields: str, strict: bool = False) -> tuple[Table, list[str]]:
        """Returns the rows with an id in each field, and a note of the others.

        Raises DataError if many lack one, or, `strict`, any.
        """
        missing = {role: self._is_missing_id(self._required(role)) for role in fields}
        lacking = pl.DataFrame(list(missing.values())).select(pl.any_horizontal(pl.all())).to_series()
        if not (count := int(lacking.sum())):
            return self, []
        rows, first = len(lacking), lacking.arg_max() or 0
        if strict or rows < FEWEST_ROWS or count > max(1, rows // 10):
            role = next(role for role in fields if missing[role][first])
            is_nan = self._required(role)[first] in MISSING
            expected = f"in the field {role!r} an id, got NaN" if is_nan else f"a value in the field {role!r}, got none"
            more = (
                f"; {count:,} of {rows:,} rows have none, and at most one in ten may be left out" if count > 1 else ""
            )
            raise line_error(self.path, self.line[first], f"expected {expected}{more}")
        kept = ~lacking
        table = replace(
            self, columns={name: one.filter(kept) for name, one in self.columns.items()}, line=self.line.filter(kept)
        )
        what = " or ".join(f"{'an' if role == 'item' else 'a'} {role}" for role in fields)
        return table, [f"{count_noun(count, 'row')} without {what} left out, the first in line {self.line[first]}"]

    @staticmethod
    def _is_missing_id(column: pl.Series) -> pl.Series:
        return column.is_null() | (normalise_ids(column) == "").fill_null(True) | column.is_in(MISSING).fill_null(True)

    def _id_column(self, role: str) -> pl.Series:
        """Returns a column of normalised ids.

        Raises DataError with the line of the first invalid one.
        """
        ids = normalise_ids(self._required(role))
        if (found := find_unusable_ids(ids)) is not None:
            self.require_none(found[0], f"in the field {role!r} {found[1]}")
        return ids

    def _time_notes(self) -> list[str]:
        column = self._find("time")
        unit = None if column is None else find_unit(column)
        return [] if unit is None else [f"times were read as {FINER[unit]}"]

    def _describe_unread(self, used: set[str]) -> list[str]:
        """Notes the columns that were not read; some files have thousands."""
        read = {name for role in used if (name := self.column_name(role)) is not None}
        names = [name for name in (*self.columns, *self.others) if name not in read]
        if not names:
            return []
        rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        listed, verb = ", ".join(names[:MOST_NAMES]), "is" if len(names) == 1 else "are"
        return [f"{'column' if len(names) == 1 else 'columns'} {listed}{rest} {verb} not read (see --columns)"]

    def column_name(self, role: str) -> str | None:
        """Returns the name of a field's column in the file; None without the column."""
        return next((name for name in self.file_options.names(role) if name in self.columns), None)

    def _checked_splits(self, column: pl.Series) -> pl.Series:
        known = column.is_in((*SPLITS, MET)).fill_null(False)
        self.require_none(~known, "train, valid, test or met in the field 'split'", column)
        return column

    def _parsed_times(self, column: pl.Series) -> pl.Series:
        seconds, wrong = parse_times(column)
        self.require_none(wrong, f"{TIMES} in the field 'time'", column)
        return seconds

    def _parsed_numbers(self, role: str, column: pl.Series) -> pl.Series:
        """Parses numbers as Float64.

        Text may have a decimal comma; true and false are 1 and 0.
        """
        texts = column
        if column.dtype == pl.String:
            texts = column.str.strip_chars().str.replace(r"^([+-]?\d+),(\d+)$", "${1}.${2}")
            words = {"": None, "true": "1", "false": "0", "True": "1", "False": "0", "TRUE": "1", "FALSE": "0"}
            texts = texts.replace(words | dict.fromkeys(("nan", "NaN", "NULL", "null", "None", "NA")))
        numbers = texts.cast(pl.Float64, strict=False)
        if column.dtype.is_float():
            numbers, texts = numbers.fill_nan(None), texts.fill_nan(None)
        wrong = ~texts.is_null() & ~numbers.is_finite().fill_null(False)
        self.require_none(wrong, f"a number in the field {role!r}", column)
        return numbers

    def _judge_events(self, notes: list[str]) -> pl.Series | None:
        """Tells which events are positive by their kind; notes count each kind."""
        column = self._find("event")
        if column is None:
            return None
        kinds = (
            column.cast(pl.String)
            .str.strip_chars()
            .str.to_lowercase()
            .str.replace_all(r"[\s-]+", "_")
            .replace("", None)
        )
        positive = kinds.is_in(list(POSITIVE_EVENTS))
        counts = kinds.drop_nulls().value_counts(sort=True).rows()
        if counts and not any(kind in POSITIVE_EVENTS | OTHER_EVENTS for kind, _ in counts):
            got = ", ".join(kind[:SHOWN_VALUE] for kind, _ in counts[:MOST_NAMES])
            expected = "expected kinds of events in the field 'event', such as view, cart, purchase or return"
            raise line_error(self.path, self.line[0], f"{expected}, got {got}; --columns event= ignores the column")
        for counts_as_positive, words in ((True, "count as positive"), (False, "do not count as positive")):
            listed = [
                f"{number:,} {kind[:SHOWN_VALUE]}{'' if kind in POSITIVE_EVENTS | OTHER_EVENTS else ' (unknown)'}"
                for kind, number in counts
                if (kind in POSITIVE_EVENTS) is counts_as_positive
            ]
            if listed:
                rest = f" and {len(listed) - MOST_NAMES} more kinds" if len(listed) > MOST_NAMES else ""
                notes.append(f"events by {self.column_name('event')}: {', '.join(listed[:MOST_NAMES])}{rest} {words}")
        return positive.alias("event")

    def _judge_quantities(self, notes: list[str]) -> pl.Series | None:
        """Tells which quantities are positive: those above 0.

        A negative quantity is a return.
        """
        column = self._find("quantity")
        if column is None:
            return None
        positive = self._parsed_numbers("quantity", column) > 0
        if none := int((~positive).sum()):
            notes.append(
                f"{none:,} of {count_noun(len(positive), 'row')} with a quantity of 0 or less do not count as positive"
            )
        return positive.alias("quantity")

    def require_none(self, wrong: pl.Series, expected: str, shown: pl.Series | None = None) -> None:
        """Raises DataError with the line of the first wrong row, if any.

        shown: values that the error may show.
        """
        if not wrong.any():
            return
        row = wrong.arg_max() or 0
        got = "" if shown is None else f", got {str(shown[row])[:SHOWN_VALUE]!r}"
        raise line_error(self.path, self.line[row], f"expected {expected}{got}")


def _attribute_values(name: str, column: pl.Series) -> pl.Series | None:
    """Converts a column to attribute values: Float64 for numbers, else String.

    null where nothing is known; None for a column without any value.
    """
    found = column
    if column.dtype == pl.String:
        found = column.replace({"": None, NO_GENRES: None})
        if name in NUMBERS and (numbers := found.cast(pl.Float64, strict=False)).null_count() == found.null_count():
            found = numbers
    elif column.dtype.is_numeric() or column.dtype == pl.Boolean:
        found = column.cast(pl.Float64)
    return None if found.null_count() == len(found) else found


def row_lines(count: int, first: int = 1) -> pl.Series:
    """Returns the lines of `count` adjacent rows."""
    return pl.Series(np.arange(first, first + count))


def table_of_fields(
    path: Path, names: Sequence[str], fields: pl.Series, line: pl.Series, file_options: FileOptions = DEFAULT_OPTIONS
) -> Table:
    """Builds a table from lists of fields (E,), each as long as `names`.

    Raises DataError for a list of another length.
    """
    if fields.is_empty() and file_options.needs_rows:
        raise line_error(path, 2, "expected data after the header, got none")
    wrong = fields.list.len() != len(names)
    if wrong.any():
        row = wrong.arg_max() or 0
        raise line_error(path, line[row], f"expected {len(names)} fields, got {len(fields[row])}")
    wanted = {name: place for place, name in enumerate(names) if file_options.is_read(name)}
    others = tuple(name for name in names if name and name not in wanted)
    columns = {name: fields.list.get(place).str.strip_chars() for name, place in wanted.items()}
    return Table(path, columns, line, file_options, others, _is_header(names, fields))


def _is_header(names: Sequence[str], fields: pl.Series) -> bool:
    """Tells whether the first line is a header.

    It is where a name without digits stands above numbers alone.
    """
    first = fields.head(ROWS_OF_EVIDENCE)
    if len(first) < FEWEST_ROWS or len(names) > MOST_NAMES:
        return False
    numeric = (
        first.list.get(place).str.replace(",", ".").cast(pl.Float64, strict=False).is_not_null().all()
        for place, name in enumerate(names)
        if name and not re.search(r"[0-9]", name)
    )
    return any(numeric)


def require_no_delimiter(path: Path, file_options: FileOptions) -> None:
    """Raises DataError for a --delimiter with a format that has none."""
    if file_options.delimiter is not None:
        raise DataError(f"{path}: expected no --delimiter for this format, got {file_options.delimiter!r}")
