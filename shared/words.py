"""Numbers, times and digests in words, for reports and pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

DASH = "–"
SHORT = 12  # characters of a digest that are shown; the whole is in the title


def count_noun(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun in singular or plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def counted_lines(counted: Iterable[tuple[int, str, str]]) -> list[str]:
    """Lists lines such as "2 users dropped", without those of 0."""
    return [f"{count_noun(number, one)} {what}" for number, one, what in counted if number]


def format_bytes(count: int) -> str:
    """Formats a number of bytes in decimal units: 812 B, 18.4 kB, 1.25 MB."""
    if count < 1000:
        return f"{count}\N{NO-BREAK SPACE}B"
    power = min(int(math.log10(count) // 3), 4)
    return f"{count / 1000**power:.3g}\N{NO-BREAK SPACE}{' kMGT'[power]}B"


def format_time(instant: str | None) -> str:
    """Formats a UTC time of ISO 8601 to the second."""
    return DASH if not instant else f"{instant[:10]} {instant[11:19]}"


def shorten_digest(digest: str | None) -> str:
    return digest[:SHORT] if digest else DASH


def format_number(value: float | None, digits: int = 4) -> str:
    """Formats a number to `digits` decimals; a dash for none."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def format_shape(lengths: Sequence[int]) -> str:
    return " × ".join(map(str, lengths)) or "one number"


def format_duration(value: float | None) -> str:
    """Formats a duration in its two largest units."""
    if value is None:
        return DASH
    whole = round(value)
    if whole < 60:
        return f"{value:.2f}\N{NO-BREAK SPACE}s" if value < 10 else f"{whole}\N{NO-BREAK SPACE}s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
