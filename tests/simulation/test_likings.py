"""A rating is no liking without a word: what counts is said, and lower ratings can be left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import DataError, SettingsError
from simulation.datasets import load_dataset
from simulation.source import Cut, cut_shards, find_or_cut_shards

STARS = "user,item,rating\na,x,1\na,y,5\na,z,\nb,x,4\nb,y,3.5\n"
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str) -> Path:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    return write


def pairs(path: Path, min_rating: float | None) -> set[tuple[str, str]]:
    return set(load_dataset(path, 0, min_rating).events.select("user", "item").rows())


def test_each_counts_by_default_and_the_note_says_so(write: Write) -> None:
    path = write("ratings.csv", STARS)
    dataset = load_dataset(path, 0)
    assert len(dataset.events) == 5
    assert dataset.notes[0] == (
        "ratings from 1 to 5, and each counts as a liking; --min-rating 4 would leave 2 of 4 out"
    )
    ten = load_dataset(write("ten.csv", STARS.replace("5\n", "10\n")), 0)
    assert ten.notes[0] == "ratings from 1 to 10, and each counts as a liking; --min-rating leaves lower ones out"
    same = load_dataset(write("same.csv", "user,item,rating\na,x,1\nb,x,1\n"), 0)
    assert not any("rating" in note for note in same.notes)


def test_lower_ratings_are_left_out_and_counted(write: Write) -> None:
    path = write("ratings.csv", STARS)
    assert pairs(path, 4.0) == {("a", "y"), ("a", "z"), ("b", "x")}
    assert load_dataset(path, 0, 4.0).notes[0] == "2 of 4 rated interactions, below 4, left out (--min-rating)"
    with pytest.raises(DataError, match=r"plain.csv: expected ratings for a least rating of 4, got none"):
        load_dataset(write("plain.csv", "user,item\na,x\n"), 0, 4.0)
    with pytest.raises(DataError, match="at least one training interaction"):
        load_dataset(write("low.csv", "user,item,rating\na,x,1\nb,x,2\n"), 0, 4.0)


def test_a_cut_leaves_them_out_and_shards_stay_as_they_are(write: Write, tmp_path: Path) -> None:
    rows = "".join(f"u{user},i{item},{1 + (user + item) % 5}\n" for user in range(12) for item in range(10))
    path = write("ratings.csv", "user,item,rating\n" + rows)
    shards = cut_shards(str(path), Cut(1, "users", min_rating=4.0), tmp_path / "cut")
    assert "72 of 120 rated interactions, below 4, left out (--min-rating)" in shards.summary["notes"]
    with pytest.raises(SettingsError, match="--min-rating: expected none with a folder of shards"):
        find_or_cut_shards(str(tmp_path / "cut"), Cut(1, min_rating=4.0), tmp_path / "again")
