"""LightGCN text (`user item item ...`, one line a user, whole numbers from 0) -> a Table of user and item."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulation.datasets.content import line_error, read_content
from simulation.datasets.tables import Table

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]

LONGEST = 18  # digits that always fit an int64
NEWLINE, RETURN, BLANK, MINUS, ZERO, NINE = (ord(character) for character in "\n\r -09")


def read_lightgcn(path: Path) -> Table:
    """The pairs, ids as strings. A line with a user alone gives no pair.

    Raises DataError with the line of the first character, number or line that does not belong.
    """
    data = read_content(path).rstrip()
    characters = np.frombuffer(data, dtype=np.uint8)
    digit = _digit_mask(path, characters)
    first = digit & ~np.concatenate([[False], digit[:-1]])
    starts = np.flatnonzero(first)
    line = np.cumsum(characters == NEWLINE)[starts]
    _check_lengths(path, starts, np.flatnonzero(digit & ~np.concatenate([digit[1:], [False]])), line)
    numbers = np.fromstring(data.decode("ascii"), dtype=np.int64, sep=" ")
    _check_lines(path, data.count(b"\n") + 1, line, numbers)
    return _pair_table(path, numbers, line)


def _digit_mask(path: Path, characters: Bytes) -> NDArray[np.bool_]:
    digit = (characters >= ZERO) & (characters <= NINE)
    end = characters == NEWLINE
    line_end = end | ((characters == RETURN) & np.concatenate([end[1:], [False]]))  # a return alone ends no line
    other = ~digit & (characters != BLANK) & ~line_end
    if other.any():
        position = int(np.argmax(other))
        line = int(np.count_nonzero(characters[:position] == NEWLINE)) + 1
        raise line_error(path, line, _describe_foreign(characters, position))
    return digit


def _describe_foreign(characters: Bytes, position: int) -> str:
    character = int(characters[position])
    if character == MINUS:
        return "expected ids from 0, got a negative id"
    if character >= 0x80:
        return f"expected digits and blanks in UTF-8 text, got byte 0x{character:02x}"
    return f"expected whole numbers separated by blanks, got the character {chr(character)!r}"


def _check_lengths(path: Path, starts: Int64, ends: Int64, line: Int64) -> None:
    long = ends - starts + 1 > LONGEST
    if long.any():
        number = int(line[np.argmax(long)]) + 1
        raise line_error(path, number, f"expected ids of at most {LONGEST} digits, got a longer one")


def _check_lines(path: Path, count: int, line: Int64, numbers: Int64) -> None:
    """Every line has a user, and no user has two lines (a user-item-rating table would pass for LightGCN text)."""
    tokens = np.bincount(line, minlength=count)
    if not tokens.all():
        raise line_error(path, int(np.argmin(tokens > 0)) + 1, "expected a user id, got an empty line")
    users = numbers[np.flatnonzero(np.diff(line, prepend=-1))]
    order = np.argsort(users, kind="stable")
    again = order[1:][np.diff(users[order]) == 0]
    if len(again):
        raise line_error(path, int(again.min()) + 1, "expected one line a user, got a second line of the same user")


def _pair_table(path: Path, numbers: Int64, line: Int64) -> Table:
    is_user = np.diff(line, prepend=-1) > 0
    columns = {"user": numbers[is_user][line[~is_user]], "item": numbers[~is_user]}
    strings = {name: pl.Series(values).cast(pl.String) for name, values in columns.items()}
    return Table(path, strings, pl.Series(line[~is_user] + 1))
