"""Numbers -> words that people read, in reports and on pages."""

from __future__ import annotations

from collections.abc import Iterable


def count_noun(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def counted_lines(counted: Iterable[tuple[int, str, str]]) -> list[str]:
    """(2, "user", "dropped") -> "2 users dropped"; no line for a number of 0."""
    return [f"{count_noun(number, one)} {what}" for number, one, what in counted if number]
