"""A rating does not count as positive silently: the threshold is reported, and lower ratings can be left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from client_service.data.interaction_files import load_shard
from shared.errors import DataError, SettingsError
from simulation.datasets.load import load_dataset
from simulation.partitioning.sources import Cut, cut_shards, find_or_cut_shards

STARS = "user,item,rating\na,x,1\na,y,5\na,z,\nb,x,4\nb,y,3.5\n"
ONE = Cut(1, "users", min_rating="usual")
LOW = "are not positive (--min-rating): not trained on, and not recommended again"
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
    assert dataset.notes[0] == ("ratings from 1 to 5, each counts as positive; --min-rating 4 would leave 2 of 4 out")
    ten = load_dataset(write("ten.csv", STARS.replace("5\n", "10\n")), 0)
    assert ten.notes[0] == "ratings from 1 to 10, each counts as positive; --min-rating leaves lower ones out"
    same = load_dataset(write("same.csv", "user,item,rating\na,x,1\nb,x,1\n"), 0)
    assert not any("rating" in note for note in same.notes)


def test_lower_ratings_are_met_and_counted(write: Write) -> None:
    path = write("ratings.csv", STARS)
    assert pairs(path, 4.0) == {("a", "y"), ("a", "z"), ("b", "x")}
    dataset = load_dataset(path, 0, 4.0)
    assert dataset.notes[0] == f"2 of 4 rated interactions, below 4, {LOW}"
    assert dataset.met is not None and dataset.met.columns == ["user", "item", "rating"]
    assert load_dataset(path, 0).met is None
    with pytest.raises(DataError, match=r"plain.csv: expected ratings for a least rating of 4, got none"):
        load_dataset(write("plain.csv", "user,item\na,x\n"), 0, 4.0)
    with pytest.raises(DataError, match="at least one training interaction"):
        load_dataset(write("low.csv", "user,item,rating\na,x,1\nb,x,2\n"), 0, 4.0)


def test_a_cut_counts_them_and_shards_stay_as_they_are(write: Write, tmp_path: Path) -> None:
    rows = "".join(f"u{user},i{item},{1 + (user + item) % 5}\n" for user in range(12) for item in range(10))
    path = write("ratings.csv", "user,item,rating\n" + rows)
    shards = cut_shards(str(path), Cut(1, "users", min_rating=4.0), tmp_path / "cut")
    assert f"72 of 120 rated interactions, below 4, {LOW}" in shards.summary["notes"]
    with pytest.raises(SettingsError, match="--min-rating: expected none with a folder of shards"):
        find_or_cut_shards(str(tmp_path / "cut"), Cut(1, min_rating=4.0), tmp_path / "again")


def test_a_silo_keeps_what_is_not_positive_without_learning_from_it(write: Write, tmp_path: Path) -> None:
    """Low ratings, held-out positives of items without training pairs, and users without a positive."""
    low = "".join(f"u{user},dull{user},1\n" for user in range(4)) + "grump,i0,1\n"
    liked = "".join(f"u{user},i{item},5\n" for user in range(4) for item in range(6))
    own = "".join(f"u0,own{item},5\n" for item in range(24))
    with_low = cut_shards(str(write("a.csv", "user,item,rating\n" + liked + own + low)), ONE, tmp_path / "a")
    without = cut_shards(str(write("b.csv", "user,item,rating\n" + liked + own + "u0,i0,4\n")), ONE, tmp_path / "b")
    shard, plain = load_shard(with_low.paths[0]), load_shard(without.paths[0])
    assert shard.digest == plain.digest and shard.lists_digest != plain.lists_digest
    assert shard.met_events is not None
    met = set(shard.met_events.select("user", "item").rows())
    assert met >= {("u0", "dull0"), ("u3", "dull3"), ("grump", "i0")}
    everything = met | set(shard.events_with_ids().select("user", "item").rows())
    assert len(everything) == 24 + 24 + 5 and shard.met_only_users == {"grump"}
    assert not any(item.startswith("dull") for item in shard.item_ids)
    assert shard.met_items("grump").tolist() == [shard.item_row("i0")] and shard.met.nnz == 0


def test_a_cut_divides_what_is_not_positive_with_its_users(write: Write, tmp_path: Path) -> None:
    rows = "".join(
        f"u{user:02},i{(user + item) % 17},{1 + (user + item) % 5}\n" for user in range(40) for item in range(9)
    )
    path = write("ratings.csv", "user,item,rating\n" + rows)
    for method in ("random", "spectral"):
        cut = cut_shards(str(path), Cut(2, method, min_rating=4.0), tmp_path / method)
        for shard in map(load_shard, cut.paths):
            assert shard.met_events is not None and set(shard.met_events["user"]) <= set(shard.user_ids)


def test_of_a_rating_that_changed_the_later_one_counts(write: Write) -> None:
    rows = "a,x,5,100\na,x,1,200\na,y,1,100\na,y,5,200\na,z,5,\na,z,1,300\n"
    dataset = load_dataset(write("ratings.csv", "user,item,rating,time\n" + rows), 0, "usual")
    assert set(dataset.events["item"]) == {"y"} and dataset.met is not None
    assert dataset.met["item"].to_list() == ["x", "z"]  # where a time is missing the order of rows decides
