"""Numbers in words that people read."""

from __future__ import annotations

from shared.words import count_noun, counted_lines


def test_one_of_a_kind_is_singular_and_thousands_are_separated() -> None:
    assert [count_noun(number, "pair") for number in (0, 1, 2, 1234)] == ["0 pairs", "1 pair", "2 pairs", "1,234 pairs"]
    assert count_noun(2, "entry", "entries") == "2 entries"


def test_what_is_not_there_has_no_line() -> None:
    assert counted_lines([(0, "user", "dropped"), (1, "item", "kept"), (2, "pair", "drawn")]) == [
        "1 item kept",
        "2 pairs drawn",
    ]
