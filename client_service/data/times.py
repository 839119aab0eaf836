"""Parses columns of times to seconds or microseconds since 1970 (UTC)."""

from __future__ import annotations

import polars as pl

from client_service.data.shard_head import FIRST, LAST

TIMES = "seconds or finer since 1970, or ISO 8601"  # in messages
FIRST_USUAL, LAST_USUAL = 315_532_800, 4_102_444_800  # 1980 and 2100: as milliseconds they are no year's seconds
FINER = {1_000: "milliseconds", 1_000_000: "microseconds", 1_000_000_000: "nanoseconds"}  # in a second
MICROS = 1_000_000
ISO = r"^(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d(?:[.,]\d+)?)?(Z|z|[+-]\d\d(?::?\d\d)?)?)?$"


def parse_times(column: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Parses times to whole seconds (Int64), null where one is missing.

    Returns also a Boolean column: which values are no time. Numbers are seconds since 1970, or finer where
    `find_unit` says so of all of them; text is a number or ISO 8601; a date means its first second, a time without a
    zone is UTC, and fractions of a second are cut off. Outside the years 1 to 9999 nothing is a time.
    """
    micros, wrong = parse_micros(column)
    return micros // MICROS, wrong


def parse_micros(column: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Parses times as `parse_times` does, to microseconds.

    Times within one second keep their order.
    """
    missing = column.is_null()
    if column.dtype == pl.String:
        column = column.str.strip_chars()
        missing = missing | (column == "").fill_null(True)
    micros = _read_micros(column)
    micros = micros.set(~micros.is_between(FIRST * MICROS, LAST * MICROS + MICROS - 1).fill_null(False), None)
    return micros, micros.is_null() & ~missing


def _read_micros(column: pl.Series) -> pl.Series:
    """Reads microseconds (Int64), null for unreadable values."""
    if column.dtype.is_numeric():
        return _read_numeric_micros(column)
    if column.dtype.is_temporal() and column.dtype not in (pl.Time, pl.Duration):
        return column.cast(pl.Datetime("us")).dt.epoch("us")
    if column.dtype != pl.String:
        return pl.Series([None] * len(column), dtype=pl.Int64)
    plain = column.str.replace(r"^(-?\d+),(\d+)$", "${1}.${2}")  # a decimal comma
    numbers = _read_numeric_micros(plain)
    return numbers if numbers.null_count() == column.null_count() else numbers.fill_null(_read_iso(column))


def _read_numeric_micros(column: pl.Series) -> pl.Series:
    """Reads microseconds of numbers; whole numbers exactly.

    Of others a float holds a microsecond of today.
    """
    unit = find_unit(column) or 1
    numbers = column.cast(pl.Float64, strict=False)
    whole = column.cast(pl.Int64, strict=False)
    exact = whole * (MICROS // unit) if unit <= MICROS else whole // (unit // MICROS)
    near = numbers.is_between(FIRST * unit, (LAST + 1) * unit - 1)
    rounded = (numbers * (MICROS / unit)).round().cast(pl.Int64, strict=False)
    found = rounded if column.dtype.is_float() else exact.fill_null(rounded)
    return found.set(~near.fill_null(False), None)


def find_unit(column: pl.Series) -> int | None:
    """Finds the fraction of a second that numbers count, by `FINER`; None for seconds.

    All values must be numbers that are a time from 1980 to 2100 in that unit; in seconds none of these would be a
    time. None too for values that are no numbers.
    """
    if not (column.dtype.is_numeric() or column.dtype == pl.String):
        return None
    values = column.replace("", None) if column.dtype == pl.String else column
    numbers = values.cast(pl.Float64, strict=False).drop_nulls()
    if numbers.is_empty() or len(numbers) < len(values) - values.null_count():
        return None
    least, most = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
    return next((unit for unit in FINER if FIRST_USUAL * unit <= least and most <= LAST_USUAL * unit), None)


def _read_iso(column: pl.Series) -> pl.Series:
    """Reads ISO 8601 text, completed to one form: date, time, zone."""
    fields = column.str.extract_groups(ISO).struct.unnest()
    date, minute, second, zone = (fields.to_series(place) for place in range(4))
    zone = zone.str.to_uppercase().fill_null("Z").str.replace(r"^([+-]\d\d)$", "${1}00")
    second = second.str.replace(",", ".", literal=True).fill_null(":00")
    complete = date + "T" + minute.fill_null("00:00") + second + zone
    return complete.str.to_datetime("%+", time_zone="UTC", time_unit="us", strict=False).dt.epoch("us")
