"""Numbers -> words that people read, in reports and on pages."""

from __future__ import annotations


def count_noun(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
