"""What a rating means is chosen once, kept with the shard, and the same for files, appended files and applications."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.data.ratings import RATING_SCALES, choose_least_rating
from client_service.event_log.messages import InteractionIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.shard_update import merge_log_into_shard
from client_service.event_log.store import EventStore
from shared.errors import DataError, SettingsError
from simulation.cli import app
from simulation.datasets.load import load_dataset
from simulation.datasets.ratings import infer_rating_meaning

SCALES = {  # ratings of a silo, and of each value posted later whether it is positive
    "stars": ([1, 2, 3, 4, 5], {1: False, 3.5: False, 4: True, 5: True}),
    "ten": ([2, 5, 8, 10], {5: False, 7.5: False, 8: True}),
    "binary": ([0, 1], {0: False, 1: True}),
    "signed": ([-10, -3.5, 0, 2.25, 9.5], {-1: False, 0: False, 0.5: True}),
    "counts": ([1, 2, 3, 7, 40], {0: False, 1: True, 100: True}),
}


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


def shard_of(folder: Path, values: list[float], *words: str) -> Path:
    rows = [
        (f"u{user}", f"i{(user + item) % 11}", values[(user * 7 + item) % len(values)])
        for user in range(12)
        for item in range(9)
    ]
    text = "user,item,rating,time\n" + "".join(f"{u},{i},{value},{100 + n}\n" for n, (u, i, value) in enumerate(rows))
    (folder / "ratings.csv").write_text(text)
    done = run("partition", folder / "ratings.csv", "--clients", "1", "--out", folder / "shards", *words)
    assert done.exit_code == 0, done.exception
    return folder / "shards/client-1"


def append(folder: Path, rows: list[tuple[Any, ...]], *words: str, header: str = "user,item,rating,time") -> Any:
    path = folder.parent.parent / "later.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return run("shard", "append", folder, path, *words)


def split_of(shard: Shard, user: str, item: str) -> str | None:
    found = shard.all_events_with_ids().filter(user=user, item=item)["split"].cast(pl.String).to_list()
    return found[0] if found else None


@pytest.mark.parametrize("kind", SCALES)
def test_a_scale_is_learnt_once_and_holds_for_file_append_and_rest(tmp_path: Path, kind: str) -> None:
    values, later = SCALES[kind]
    folder = shard_of(tmp_path, values)
    shard = load_shard(folder)
    assert (
        shard.rating == RATING_SCALES[kind]
        and json.loads((folder / "shard.json").read_text())["rating"]["kind"] == kind
    )
    least = RATING_SCALES[kind].least
    assert shard.events["rating"].min() >= least
    low = sum(value < least for value in values)
    assert (shard.met_events is not None) == (low > 0)
    overlay = Overlay(compile_in_memory(shard))
    for number, (value, likes) in enumerate(later.items()):
        user, item = "u0", f"new-{number}"
        done = append(folder, [(user, item, value, 900)])  # alone in its file
        assert done.exit_code == 0, done.exception
        assert (split_of(load_shard(folder), user, item) == "train") is likes, value
        assert (value >= overlay.least_rating) is likes, value


def test_a_shard_that_rest_writes_agrees_with_the_file(tmp_path: Path) -> None:
    for kind, value, likes in (
        ("ten", 5.0, False),
        ("binary", 1.0, True),
        ("signed", 0.0, False),
        ("counts", 1.0, True),
    ):
        folder = tmp_path / kind
        folder.mkdir()
        before = load_shard(shard_of(folder, SCALES[kind][0]))
        user = before.user_ids[0]
        liked = before.item_ids[int(before.train.indices[0])]
        store = EventStore(folder)
        store.append([InteractionIn(event="1", user=user, item=liked, rating=value)])
        after = merge_log_into_shard(before, store, None).after
        store.close()
        assert (split_of(after, user, liked) in ("train", "valid", "test")) is likes, kind


def test_a_later_low_rating_takes_a_positive_back_and_a_later_high_one_gives_it_again(tmp_path: Path) -> None:
    folder = shard_of(tmp_path, SCALES["stars"][0])
    shard = load_shard(folder)
    first = shard.events_with_ids().filter(split="train").row(0, named=True)
    user, item, time = first["user"], first["item"], first["time"]
    assert append(folder, [(user, item, 1, time - 50)]).exit_code == 0  # an earlier one does not
    assert split_of(load_shard(folder), user, item) == "train"
    assert append(folder, [(user, item, 1, time + 50)]).exit_code == 0
    assert split_of(load_shard(folder), user, item) == "met"
    assert append(folder, [(user, item, 5, time + 90)]).exit_code == 0
    assert split_of(load_shard(folder), user, item) == "train"
    untimed = append(folder, [(user, item, 5), (user, item, 2)], header="user,item,rating")
    assert untimed.exit_code == 0 and split_of(load_shard(folder), user, item) == "met"  # by the order of rows


def test_ratings_outside_the_scale_are_counted_or_refused(tmp_path: Path) -> None:
    folder = shard_of(tmp_path, SCALES["stars"][0])
    digest = load_shard(folder).digest
    ten = append(folder, [("u0", f"x{n}", n, 900) for n in range(1, 11)])
    assert isinstance(ten.exception, DataError) and load_shard(folder).digest == digest
    assert "expected ratings from 0 to 5, as the shard's ratings are, got from 1 to 10, 5 of 10" in str(ten.exception)
    six = append(folder, [("u0", "x6", 6, 900), *((f"u{n}", "x5", 4.5, 900) for n in range(11))])
    assert six.exit_code == 0 and "1 rating outside the scale from 0 to 5" in six.stderr
    assert split_of(load_shard(folder), "u0", "x6") == "train"


def test_what_one_file_says_of_itself_wins_for_that_file(tmp_path: Path) -> None:
    folder = shard_of(tmp_path, SCALES["stars"][0])
    assert append(folder, [("u0", "x", 2, 900)], "--min-rating", "2").exit_code == 0
    assert split_of(load_shard(folder), "u0", "x") == "train" and load_shard(folder).rating == RATING_SCALES["stars"]
    labelled = append(folder, [("u0", "y", 1), ("u0", "z", 0)], header="user,item,label")  # on a scale of its own
    assert labelled.exit_code == 0
    shard = load_shard(folder)
    assert split_of(shard, "u0", "y") == "train" and split_of(shard, "u0", "z") == "met"
    both = append(folder, [("u0", "x", 2, 900)], "--min-rating", "2", "--rating-kind", "ten")
    assert isinstance(both.exception, SettingsError)


def test_unrated_rows_and_nobody_s_99_are_said(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\na,x,5\na,y,\na,z,1\nb,x,4\n")
    dataset = load_dataset(path, 0, "usual")
    assert "1 interaction without a rating, among rated ones, count as positive" in dataset.notes
    assert set(dataset.events["item"]) == {"x", "y"}
    path.write_text("user,item,rating\na,x,5.5\na,y,99\na,z,-9.75\nb,x,0.25\n")
    jokes = load_dataset(path, 0, "usual")
    assert jokes.notes[0] == "1 row with a rating of 99, which says not rated, left out" and len(jokes.events) == 2


def frequent(counts: dict[int, int]) -> pl.Series:
    return pl.Series([float(value) for value, number in counts.items() for _ in range(number)])


@pytest.mark.parametrize(
    ("ratings", "kind"),
    [
        (frequent({2: 5, 3: 9, 5: 3}), "stars"),  # nobody gave one star
        (pl.Series([0.5, 3.5, 4.0]), "stars"),
        (frequent({1: 50, 2: 8, 3: 6, 4: 10, 5: 60}), "stars"),
        (frequent({1: 450, 2: 130, 3: 70, 4: 40, 5: 30, 6: 10, 8: 8, 10: 3}), "counts"),
        (frequent({1: 300, 2: 100, 3: 30, 4: 9, 5: 2}), "counts"),
        (frequent({1: 296, 2: 178, 3: 107, 4: 64, 5: 96}), "counts"),  # "5 or more"
        (frequent({1: 3, 7: 5, 9: 9, 10: 4}), "ten"),
        (frequent({10: 3, 55: 5, 80: 9, 100: 4}), "hundred"),
        (frequent({-1: 3, 1: 5}), "signed"),
        (frequent({1: 30}), "binary"),
        (frequent({5: 30}), "stars"),
        (frequent({1: 3, 2: 3, 3: 4}), "any"),
    ],
)
def test_the_scale_is_found_by_the_ratings(ratings: pl.Series, kind: str) -> None:
    found = infer_rating_meaning(ratings)
    assert found is not None and found.kind == kind
    column = infer_rating_meaning(frequent({1: 3, 5: 3}), "count")
    assert (
        column is not None and column.kind == "counts" and infer_rating_meaning(pl.Series([], dtype=pl.Float64)) is None
    )


def test_the_kind_can_be_said(tmp_path: Path) -> None:
    shard = load_shard(shard_of(tmp_path, SCALES["ten"][0], "--rating-kind", "counts"))
    assert shard.rating == RATING_SCALES["counts"] and shard.met_events is None


def test_a_setting_that_contradicts_the_shard_is_refused(tmp_path: Path) -> None:
    shard = load_shard(shard_of(tmp_path, SCALES["ten"][0]))
    assert choose_least_rating(None, shard.rating) == choose_least_rating(8.0, shard.rating) == 8.0
    with pytest.raises(SettingsError, match=r"least_rating: expected 8, as the shard was made with, .* got 4"):
        Overlay(compile_in_memory(shard), least_rating=4.0)
    assert (
        choose_least_rating(None, None) == 4.0 and choose_least_rating(3.0, None) == 3.0
    )  # a shard of an earlier version


def test_a_shard_of_an_earlier_version_learns_its_scale_from_its_own_ratings_too(tmp_path: Path) -> None:
    folder = shard_of(tmp_path, SCALES["stars"][0])
    head = json.loads((folder / "shard.json").read_text())
    del head["rating"]
    (folder / "shard.json").write_text(json.dumps(head))
    assert load_shard(folder).rating is None
    assert append(folder, [("u0", "x", 1, 900)]).exit_code == 0  # one star alone
    shard = load_shard(folder)
    assert split_of(shard, "u0", "x") == "met" and shard.rating == RATING_SCALES["stars"]
