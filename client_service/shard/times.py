"""A column of times in any of the forms that are read -> whole seconds since 1970 (UTC)."""

from __future__ import annotations

import polars as pl

TIMES = "whole seconds or milliseconds since 1970, or ISO 8601"  # what an error says was expected
FIRST, LAST = -62_135_596_800, 253_402_300_799  # the years 1 and 9999: milliseconds of today lie beyond
FIRST_MILLI, LAST_MILLI = 315_532_800_000, 4_102_444_800_000  # 1980 and 2100 in milliseconds; no seconds lie there
ISO = r"^(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d(?:[.,]\d+)?)?(Z|z|[+-]\d\d(?::?\d\d)?)?)?$"


def parse_times(column: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The times as Int64, null where there is none; and a Boolean column: which values are no time.

    Numbers are seconds since 1970, or milliseconds where `are_milliseconds` says so of all of them; text is a number
    or ISO 8601; a date means its first second, a time without a zone is UTC, and fractions of a second are cut off.
    Outside the years 1 to 9999 nothing is a time.
    """
    missing = column.is_null()
    if column.dtype == pl.String:
        column = column.str.strip_chars()
        missing = missing | (column == "").fill_null(True)
    seconds = _seconds(column)
    seconds = seconds.set(~seconds.is_between(FIRST, LAST).fill_null(False), None)
    return seconds, seconds.is_null() & ~missing


def _seconds(column: pl.Series) -> pl.Series:
    """Int64, null for what cannot be read."""
    if column.dtype.is_numeric():
        return _drop_fractions(column)
    if column.dtype.is_temporal() and column.dtype not in (pl.Time, pl.Duration):
        return column.cast(pl.Datetime("us")).dt.epoch("s")
    if column.dtype != pl.String:
        return pl.Series([None] * len(column), dtype=pl.Int64)
    numbers = _drop_fractions(column)
    return numbers if numbers.null_count() == column.null_count() else numbers.fill_null(_iso(column))


def _drop_fractions(column: pl.Series) -> pl.Series:
    """Numbers without their fractions. Seconds are far below 2^53, above which float64 is not exact."""
    numbers = column.cast(pl.Float64, strict=False)
    return (numbers / 1000 if _lie_in_milliseconds(numbers) else numbers).floor().cast(pl.Int64, strict=False)


def are_milliseconds(column: pl.Series) -> bool:
    """Is each value a number that is a time from 1980 to 2100 in milliseconds? In seconds none of them would be."""
    if not (column.dtype.is_numeric() or column.dtype == pl.String):
        return False
    values = column.replace("", None) if column.dtype == pl.String else column
    numbers = values.cast(pl.Float64, strict=False)
    return numbers.null_count() == values.null_count() < len(values) and _lie_in_milliseconds(numbers)


def _lie_in_milliseconds(numbers: pl.Series) -> bool:
    known = numbers.drop_nulls()
    return not known.is_empty() and bool(known.is_between(FIRST_MILLI, LAST_MILLI).all())


def _iso(column: pl.Series) -> pl.Series:
    """ISO 8601 text, completed to one form that is then read: date, time to the second or finer, zone."""
    fields = column.str.extract_groups(ISO).struct.unnest()
    date, minute, second, zone = (fields.to_series(place) for place in range(4))
    zone = zone.str.to_uppercase().fill_null("Z").str.replace(r"^([+-]\d\d)$", "${1}00")
    second = second.str.replace(",", ".", literal=True).fill_null(":00")
    complete = date + "T" + minute.fill_null("00:00") + second + zone
    return complete.str.to_datetime("%+", time_zone="UTC", strict=False).dt.epoch("s")
