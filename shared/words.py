"""Numbers in words, for reports and pages."""

from __future__ import annotations

from collections.abc import Iterable


def count_noun(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun in singular or plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def counted_lines(counted: Iterable[tuple[int, str, str]]) -> list[str]:
    """Lists lines such as "2 users dropped", without those of 0."""
    return [f"{count_noun(number, one)} {what}" for number, one, what in counted if number]
