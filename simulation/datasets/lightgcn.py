"""Reader of LightGCN text, `user item item ...`, one line a user.

Ids are whole numbers from 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_service.data.files import require_text_memory
from simulation.datasets.columns import FileOptions
from simulation.datasets.content import line_error, read_text, split_lines
from simulation.datasets.tables import Table, require_no_delimiter

NEWLINE, BLANK, MINUS, ZERO, NINE = (ord(character) for character in "\n -09")


def read_lightgcn(path: Path, file_options: FileOptions) -> Table:
    """Reads the pairs of a file, ids as strings of any length.

    A line with a user alone gives no pair. Raises DataError with the line of the first character or line that is not of
    the format.
    """
    require_no_delimiter(path, file_options)
    whole = read_text(path).rstrip()
    require_text_memory(path, whole, " ")
    _check_characters(path, np.frombuffer(whole.encode(), dtype=np.uint8))
    numbers = pl.Series(split_lines(whole), dtype=pl.String).str.extract_all(r"[0-9]+")
    _check_lines(path, numbers)
    items = numbers.list.slice(1)
    counts = items.list.len().to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(numbers)), counts)
    columns = {"user": numbers.list.get(0).gather(rows), "item": items.filter(items.list.len() > 0).explode()}
    return Table(path, columns, pl.Series(rows + 1), file_options)


def _check_characters(path: Path, characters: NDArray[np.uint8]) -> None:
    digit = (characters >= ZERO) & (characters <= NINE)
    other = ~digit & (characters != BLANK) & (characters != NEWLINE)
    if other.any():
        position = int(np.argmax(other))
        line = int(np.count_nonzero(characters[:position] == NEWLINE)) + 1
        raise line_error(path, line, _describe_foreign(int(characters[position])))


def _describe_foreign(character: int) -> str:
    if character == MINUS:
        return "expected ids from 0, got a negative id"
    if character >= 0x80:
        return f"expected digits and blanks in UTF-8 text, got byte 0x{character:02x}"
    return f"expected whole numbers separated by blanks, got the character {chr(character)!r}"


def _check_lines(path: Path, numbers: pl.Series) -> None:
    """Checks that every line has a user, and that no user has two lines.

    A user-item-rating table would otherwise pass for LightGCN text.
    """
    empty = numbers.list.len() == 0
    if empty.any():
        raise line_error(path, (empty.arg_max() or 0) + 1, "expected a user id, got an empty line")
    again = ~numbers.list.get(0).is_first_distinct()
    if again.any():
        raise line_error(
            path, (again.arg_max() or 0) + 1, "expected one line a user, got a second line of the same user"
        )
