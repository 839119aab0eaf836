"""How a user's interactions become train, valid and test: drawn, by time, and with one left out."""

from __future__ import annotations

import json
import random
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from client_service.data.digests import list_digest
from client_service.data.interaction_files import load_shard
from shared.errors import DataError, SettingsError
from simulation.cli import app
from simulation.datasets.load import load_dataset
from simulation.datasets.splits import draw_pairs, split_by_user, split_validation
from simulation.datasets.synthetic import generate_dataset

# Of 240 users and 160 items of the generator: a split that was published stays what it was.
DRAWN = "18633f97537f"
FNV = 0xCBF29CE484222325


def timed(users: int = 12, each: int = 20) -> list[tuple[str, str, int]]:
    """Each user met i0, i1, ... one after the other; the lines come in any order."""
    rows = [(f"u{user}", f"i{item:02d}", 1_000_000_000 + 60 * item) for user in range(users) for item in range(each)]
    random.Random(0).shuffle(rows)
    return rows


def write(path: Path, rows: list[tuple[Any, ...]], columns: str = "user,item,time") -> Path:
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def parts(events: pl.DataFrame, user: str = "u3") -> dict[str, list[str]]:
    own = events.filter(user=user).sort("item")
    return {split: own.filter(split=split)["item"].to_list() for split in ("train", "valid", "test")}


def test_a_drawn_split_is_the_one_that_was_published() -> None:
    events = generate_dataset(0, users=240, items=160).events
    rows = [f"{user} {item} {split}" for user, item, split in events.select("user", "item", "split").rows()]
    assert list_digest(rows)[:12] == DRAWN


def test_by_time_the_last_are_for_test_and_those_before_them_for_validation(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path / "sales.csv", timed()), 0, split="time")
    assert parts(dataset.events) == {
        "train": [f"i{item:02d}" for item in range(16)],
        "valid": ["i16", "i17"],
        "test": ["i18", "i19"],
    }
    assert dataset.notes[-1].startswith("split by time")


def test_one_is_left_out_by_time_where_there_are_times_and_else_drawn(tmp_path: Path) -> None:
    rows = [*timed(), ("few", "i00", 1_000_000_000), ("few", "i01", 1_000_000_060)]
    dataset = load_dataset(write(tmp_path / "sales.csv", rows), 0, split="leave-one-out")
    assert parts(dataset.events)["test"] == ["i19"] and parts(dataset.events)["valid"] == ["i18"]
    assert parts(dataset.events, "few") == {"train": ["i00", "i01"], "valid": [], "test": []}
    assert dataset.notes[-2:] == (
        "split leaves one out: the last by time of each user is for test, another for validation",
        "1 user with fewer than 3 interactions, all for training",
    )
    plain = write(tmp_path / "plain.csv", [row[:2] for row in rows], "user,item")
    drawn = load_dataset(plain, 0, split="leave-one-out")
    assert {split: len(items) for split, items in parts(drawn.events).items()} == {"train": 18, "valid": 1, "test": 1}
    assert "drawn with seed 0" in drawn.notes[-2]
    assert not load_dataset(plain, 1, split="leave-one-out").events.equals(drawn.events)


@pytest.mark.parametrize("kind", ["random", "time", "leave-one-out"])
def test_the_order_of_lines_changes_nothing(tmp_path: Path, kind: Any) -> None:
    rows = [(user, item, 7 + (time > 1_000_000_600)) for user, item, time in timed()]  # many equal times
    first = load_dataset(write(tmp_path / "one.csv", rows), 3, split=kind).events
    other = load_dataset(write(tmp_path / "two.csv", rows[::-1]), 3, split=kind).events
    assert first.equals(other)
    drawn = load_dataset(tmp_path / "one.csv", 4, split=kind).events
    assert not drawn.equals(first)  # equal times are drawn too


def test_a_split_keeps_no_order_of_ids_among_equal_times() -> None:
    rows = [(f"u{user}", f"i{item:02d}", 5) for user in range(200) for item in range(10)]
    events = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    test = split_by_user(events, 0, "time").filter(split="test")
    assert test["item"].n_unique() == 10


def test_what_cannot_be_split_so_is_said(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [*timed(2), ("u0", "i99", "")]
    with pytest.raises(DataError, match=r"sales.csv: expected a time of each interaction .*, 1 have none"):
        load_dataset(write(tmp_path / "sales.csv", rows), 0, split="time")
    with pytest.raises(DataError, match="2 have none"):
        load_dataset(write(tmp_path / "no.csv", [("a", "x"), ("a", "y")], "user,item"), 0, split="time")
    ready = write(tmp_path / "ready.csv", [("a", "x", "train"), ("a", "y", "test")], "user,item,split")
    with pytest.raises(SettingsError, match="expected none for data that bring their own split, got time"):
        load_dataset(ready, 0, split="time")
    for words in (["chain"], ["synthetic"]):
        refused = run("partition", *words, "--out", str(tmp_path / "out"), "--split", "time")
        assert "whose data are generated, got time" in str(refused.exception)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_the_commands_say_how_the_data_were_read_and_split(tmp_path: Path) -> None:
    def shift(user: str, item: str) -> str:  # another order for each user, so that no item is everybody's last
        return f"i{(int(user[1:]) + int(item[1:])) % 20:02d}"

    rows = [(user, shift(user, item), 1000 * time, 1 + (time % 5)) for user, item, time in timed(60)]
    path = write(tmp_path / "sales.csv", rows, "user,item,time,rating")
    out = (
        "--out",
        str(tmp_path / "shards"),
        "--clients",
        "2",
        "--method",
        "random",
        "--split",
        "leave-one-out",
        "--min-rating",
        "0",
    )
    made = run("partition", str(path), *out, "--json")
    notes = json.loads(made.stdout)["notes"]
    assert notes[0] == "times were read as milliseconds" and any("leaves one out" in note for note in notes)
    events = [load_shard(tmp_path / f"shards/client-{number}").events for number in (1, 2)]
    times = pl.concat([one.filter(split="test")["time"] for one in events])
    assert times.min() == times.max() == 1_000_000_000 + 60 * 19
    again = run("simulate", str(tmp_path / "shards"), "--split", "time", "--out", str(tmp_path / "run"))
    assert "expected none with a folder of shards" in str(again.exception)


def test_a_simulation_says_on_stderr_what_its_cut_drops(tmp_path: Path) -> None:
    small = (
        "--set",
        "width=4",
        "--set",
        "cutoff=8",
        "--rounds",
        "1",
        "--no-floors",
        "--clients",
        "2",
        "--method",
        "random",
    )
    path = write(tmp_path / "sales.csv", timed(60))
    done = run("simulate", str(path), *small, "--split", "time", "--out", str(tmp_path / "run"))
    assert done.exit_code == 0 and "- split by time, user by user" in done.stderr
    assert "split by time" not in done.stdout


def test_appended_ratings_below_the_scale_s_positives_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "sales.csv", timed(60))
    assert (
        run("partition", str(path), "--out", str(tmp_path / "shards"), "--clients", "2", "--method", "random").exit_code
        == 0
    )
    more = write(tmp_path / "more.csv", [("new", "i00", 5), ("new", "i01", 1), ("new", "i02", 4)], "user,item,rating")
    folder = tmp_path / "shards/client-1"
    told = run("shard", "append", str(folder), str(more))
    assert told.exit_code == 0 and "1 of 3 rated interactions, below 4, are not positive" in told.stderr
    assert own_items(folder) == ["i00", "i02"]
    assert run("shard", "append", str(folder), str(more), "--min-rating", "0", "--json").exit_code == 0
    assert own_items(folder) == ["i00", "i01", "i02"]


def own_items(folder: Path) -> list[str]:
    shard = load_shard(folder)
    row = shard.user_ids.index("new")
    return sorted(shard.item_ids[item] for item in shard.events.filter(user=row)["item"])


def plain_draw(seed: int, user: str, item: str) -> float:
    """As `draw_pairs`, one pair at a time: FNV-1a of each id, SplitMix64 over both and the seed."""
    of_user, of_item = (reduce(lambda h, b: (h ^ b) * 0x100000001B3 % 2**64, i.encode(), FNV) for i in (user, item))
    return (mix(mix((of_user + mix(seed)) % 2**64) ^ of_item) >> 11) * 2.0**-53


def mix(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def test_a_draw_follows_from_seed_and_ids_on_every_machine() -> None:
    assert reduce(lambda h, b: (h ^ b) * 0x100000001B3 % 2**64, b"foobar", FNV) == 0x85944171F73967E8  # FNV's own
    assert mix(0) == 0xE220A8397B1DCDAF  # SplitMix64's
    pairs = [("u1", "a"), ("u1", "bc"), ("é漢", "a" * 300), ("", "b"), ("u1", "b")]
    table = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    for seed in (0, 7):
        assert draw_pairs(table, seed).tolist() == [plain_draw(seed, *pair) for pair in pairs]


def test_draws_are_even() -> None:
    events = pl.DataFrame(
        [(f"u{u}", f"i{i}", "train") for u in range(300) for i in range(40)], ["user", "item", "split"], orient="row"
    )
    drawn = np.sort(draw_pairs(events, 0))
    assert np.abs(drawn - np.arange(len(drawn)) / len(drawn)).max() < 2 / np.sqrt(len(drawn))  # Kolmogorov, p < .001
    held = split_by_user(events, 0).filter(split="test")["item"].value_counts()["count"]
    assert len(held) == 40 and held.to_numpy().min() > 10  # of 1,200 among 40 items


def test_one_user_less_changes_no_drawn_validation_pair() -> None:
    events = pl.DataFrame(
        [(f"u{u}", f"i{i}", "train") for u in range(30) for i in range(20)], ["user", "item", "split"], orient="row"
    )
    less = split_validation(events.filter(pl.col("user") != "u0"), 0)
    assert split_validation(events, 0).filter(pl.col("user") != "u0").equals(less)


def test_at_one_date_nobody_trains_after_anybody_is_tested(tmp_path: Path) -> None:
    rows = [
        (f"u{user}", f"i{(user + n) % 30}", 1_000_000 + 1000 * n + 37 * user) for user in range(20) for n in range(25)
    ]
    late = [("late", f"i{n}", 1_000_000 + 1000 * 24 + n) for n in range(3)]
    dataset = load_dataset(write(tmp_path / "sales.csv", [*rows, *late]), 0, split="global-time")
    times = {split: dataset.events.filter(split=split)["time"] for split in ("train", "valid", "test")}
    assert times["train"].max() < times["valid"].min() and times["valid"].max() < times["test"].min()  # type: ignore[operator]
    assert all(0.05 < len(times[split]) / len(rows) < 0.15 for split in ("valid", "test"))
    assert (
        "late" not in set(dataset.events["user"]) and dataset.met is not None and set(dataset.met["user"]) == {"late"}
    )
    assert any(
        note.startswith("split at the same dates for all users: validation since 1970-01-12") for note in dataset.notes
    )
    assert "1 user without a training item dropped, with 3 pairs kept as met" in dataset.notes
    equal = load_dataset(
        write(tmp_path / "days.csv", [(u, i, t // 9000) for u, i, t in rows]), 0, split="global-time"
    ).events
    assert equal.group_by("time").agg(pl.col("split").n_unique())["split"].max() == 1  # equal times fall on one side
    with pytest.raises(DataError, match="expected three different times or more for --split global-time, got 2"):
        load_dataset(write(tmp_path / "two.csv", [("a", "x", 1), ("a", "y", 2)]), 0, split="global-time")
    with pytest.raises(DataError, match="a time of each interaction for --split global-time, 1 have none"):
        load_dataset(write(tmp_path / "no.csv", [("a", "x", 1), ("a", "y", "")]), 0, split="global-time")
