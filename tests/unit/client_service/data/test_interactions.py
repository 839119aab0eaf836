"""A shard is written, read back, checked against its head, and never quotes an id when it is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from client_service.data.id_columns import find_unusable_ids
from client_service.data.ids import require_usable_id
from client_service.data.interaction_files import load_shard, save_shard, write_shard
from client_service.data.interactions import Shard
from shared.errors import DataError

INTERACTIONS = pl.DataFrame(
    {
        "user": ["secret-b", "secret-a", "secret-a", "secret-b", "secret-a"],
        "item": ["hidden-2", "hidden-1", "hidden-2", "hidden-1", "hidden-3"],
        "split": ["train", "train", "train", "valid", "test"],
    }
)
ITEMS = pl.DataFrame({"item": ["hidden-3", "hidden-1", "hidden-4", "hidden-2"], "title": ["Three", "One", None, "Two"]})


DIGEST = "436746777610ca1e6aaf78943e5ced27bebbeae6578bfec2ff8735c55b65c3a7"  # of both, as the first format had it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shard(tmp_path / "shop", "shop", INTERACTIONS, ITEMS, ["a note"])
    return tmp_path / "shop"


def refused(folder: Path, *words: str) -> str:
    """The message with which the shard is refused; it has all the words and no id."""
    with pytest.raises(DataError) as raised:
        load_shard(folder)
    message = str(raised.value)
    assert [word for word in words if word not in message] == [], message
    assert "secret" not in message and "hidden" not in message
    return message


def rewrite(folder: Path, **changes: Any) -> None:
    """Put other values into the head."""
    head = json.loads((folder / "shard.json").read_text())
    (folder / "shard.json").write_text(json.dumps(head | changes))


def own(folder: Path, table: pl.DataFrame) -> Path:
    """A folder as a silo makes it: its interactions and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    table.write_parquet(folder / "interactions.parquet")
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x" * 512, None),
        ("x" * 513, "at most 512 characters"),
        ("a\x00b", "without control characters"),
        ("a\x7f", "without control characters"),
        ("NaN", "got NaN"),
        ("nan", "got NaN"),
        ("NAN", None),
        ("\u2060", None),
    ],
)
def test_one_id_is_judged_as_a_column_of_them_is(text: str, expected: str | None) -> None:
    found = find_unusable_ids(pl.Series([text]))
    if expected is None:
        assert found is None and require_usable_id(text) == text
        return
    assert found is not None and expected in found[1]
    with pytest.raises(ValueError, match=expected):
        require_usable_id(text)


def test_what_is_written_comes_back(folder: Path) -> None:
    shard = load_shard(folder)
    assert (shard.name, shard.notes) == ("shop", ("a note",))
    assert shard.user_ids == ("secret-a", "secret-b")
    assert shard.item_ids == ("hidden-1", "hidden-2", "hidden-3", "hidden-4")
    assert shard.titles == ("One", "Two", "Three", None)
    assert shard.train.toarray().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0]]
    assert shard.valid.toarray().tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert shard.test.toarray().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert shard.train.dtype == np.float64 and shard.train.has_sorted_indices


def test_a_folder_of_the_first_format_opens_with_its_digest_and_is_written_as_it_was(tmp_path: Path) -> None:
    """Times, ratings and features beside pairs of that format had no meaning, and have none."""
    sizes = {"users": 2, "items": 4, "train": 3, "valid": 1, "test": 1}
    head = {"format": "lpsfed-shard/1", "name": "shop", **sizes, "digest": DIGEST, "notes": ["a note"]}
    for details in ({}, {"time": pl.lit("yesterday"), "rating": pl.lit(5)}):
        INTERACTIONS.with_columns(**details).write_parquet(tmp_path / "interactions.parquet")
        ITEMS.sort("item").with_columns(**details).write_parquet(tmp_path / "items.parquet")
        (tmp_path / "shard.json").write_text(json.dumps(head))
        shard = load_shard(tmp_path)
        assert (shard.digest, shard.events_digest, shard.features) == (DIGEST, None, None)
        assert shard.train.toarray().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0]]
    save_shard(tmp_path, shard)
    assert json.loads((tmp_path / "shard.json").read_text()) == head


def test_times_ratings_and_features_are_kept_under_a_digest_of_their_own(tmp_path: Path) -> None:
    detailed = INTERACTIONS.with_columns(time=pl.Series([50, 40, None, 20, 10]), rating=pl.Series([5, 4, 3, 2, None]))
    items = ITEMS.with_columns(price=pl.Series([3, 1, 4, 2]), colour=pl.lit("red"), tags=pl.lit([["a"]]).first())
    head = write_shard(tmp_path / "a", "shop", detailed, items)
    shard = load_shard(tmp_path / "a")
    assert (head.format, shard.digest, shard.events_digest) == ("lpsfed-shard/2", DIGEST, head.events_digest)
    assert shard.events.rows() == [
        (0, 0, "train", 40, 4.0),
        (0, 1, "train", None, 3.0),
        (1, 1, "train", 50, 5.0),
        (1, 0, "valid", 20, 2.0),
        (0, 2, "test", 10, None),
    ]
    assert shard.features is not None and shard.features.rows() == [
        (1.0, "red"),
        (2.0, "red"),
        (3.0, "red"),
        (4.0, "red"),
    ]
    assert shard.notes == ("1 column of the items left out: neither numbers nor strings",)
    again = write_shard(tmp_path / "b", "other", detailed.reverse(), items.reverse())
    later = write_shard(tmp_path / "c", "shop", detailed.with_columns(pl.col("time") + 1), items)
    dearer = write_shard(tmp_path / "d", "shop", detailed, items.with_columns(pl.col("price") + 1))
    assert again.events_digest == head.events_digest and {later.digest, dearer.digest} == {DIGEST}
    assert len({head.events_digest, later.events_digest, dearer.events_digest}) == 3


def test_of_a_repeated_pair_the_earliest_event_of_the_first_split_stays(tmp_path: Path) -> None:
    rows = [("a", "x", "test", 1), ("a", "x", "train", 9), ("a", "x", "train", None), ("a", "x", "train", 8)]
    table = pl.DataFrame(rows, schema=["user", "item", "split", "time"], orient="row")
    for order in (table, table.reverse()):
        write_shard(tmp_path, "shop", order, None)
        assert load_shard(tmp_path).events.rows() == [(0, 0, "train", 8)]


def test_a_repeated_row_in_the_files_of_a_shard_with_a_head_is_refused(folder: Path) -> None:
    pl.concat([INTERACTIONS, INTERACTIONS.head(1)]).write_parquet(folder / "interactions.parquet")
    refused(folder, "shard.json", "each pair once", "6 interactions")


def test_bad_times_and_ratings_are_refused_and_counted(tmp_path: Path) -> None:
    times = pl.Series(["hidden", "2015-13-01", "7", None, ""])
    refused(own(tmp_path, INTERACTIONS.with_columns(time=times)), "'time'", "ISO 8601", "2 of 5 rows")
    refused(own(tmp_path, INTERACTIONS.with_columns(rating=pl.lit("hidden"))), "'rating'", "numbers", "String")
    refused(own(tmp_path, INTERACTIONS.with_columns(rating=pl.lit(float("nan")))), "'rating'", "finite", "5 rows")


def test_the_digest_depends_on_the_content_alone(tmp_path: Path) -> None:
    def digest(interactions: pl.DataFrame, items: pl.DataFrame, name: str = "x") -> str:
        return write_shard(tmp_path / name, name, interactions, items).digest

    base = digest(INTERACTIONS, ITEMS)
    assert digest(INTERACTIONS.reverse(), ITEMS.reverse(), "y") == base
    assert digest(INTERACTIONS.head(4), ITEMS) != base
    assert digest(INTERACTIONS, ITEMS.with_columns(title=pl.lit("same"))) != base


def test_writing_again_replaces_the_shard_and_leaves_no_other_files(folder: Path) -> None:
    write_shard(folder, "shop", INTERACTIONS.head(3), None)
    assert load_shard(folder).test.nnz == 0
    assert sorted(file.name for file in folder.iterdir()) == ["interactions.parquet", "items.parquet", "shard.json"]


def test_users_without_a_training_item_and_repeated_pairs_are_dropped_and_counted(tmp_path: Path) -> None:
    extra = pl.DataFrame(
        {"user": ["secret-c", "secret-a", "secret-a"], "item": ["hidden-1"] * 3, "split": ["test", "test", "train"]}
    )
    head = write_shard(tmp_path, "shop", pl.concat([INTERACTIONS, extra]), None)
    assert (head.users, head.train, head.test) == (2, 3, 1)
    assert head.notes == (
        "1 duplicate pair dropped",
        "1 pair in more than one split kept in the first only",
        "1 user without a training item dropped, with 1 pair kept as met",
    )


def test_interactions_alone_are_a_shard_named_after_the_folder(tmp_path: Path) -> None:
    shard = load_shard(own(tmp_path / "hospital", INTERACTIONS))
    assert (shard.name, shard.titles, len(shard.item_ids)) == ("hospital", None, 3)


def test_integer_ids_become_strings(tmp_path: Path) -> None:
    table = pl.DataFrame({"user": [10, 9], "item": [7, 8], "split": ["train", "train"]})
    shard = load_shard(own(tmp_path, table))
    assert (shard.user_ids, shard.item_ids) == (("10", "9"), ("7", "8"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "lpsfed-shard/5"}, ("shard.json", "'lpsfed-shard/1'", "'lpsfed-shard/5'")),
        ({"users": 3}, ("shard.json", "expected users 3", "have 2")),
        ({"items": 5}, ("expected items 5", "have 4")),
        ({"train": 2}, ("expected train 2", "have 3")),
        ({"digest": "0" * 64}, ("expected digest 0000",)),
        ({"valid": -1}, ("shard.json", "valid")),
        ({"surprise": "hidden"}, ("shard.json", "surprise")),
    ],
)
def test_a_head_that_disagrees_is_refused(folder: Path, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    rewrite(folder, **changes)
    refused(folder, *words)


def test_a_head_that_is_no_json_or_no_object_is_refused(folder: Path) -> None:
    (folder / "shard.json").write_bytes(b"{hidden")
    refused(folder, "shard.json", "JSON")
    (folder / "shard.json").write_text("[]")
    refused(folder, "shard.json", "'list'")


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "items.parquet").unlink()
    refused(folder, "shard.json", "expected items 4", "have 3")
    (folder / "interactions.parquet").unlink()
    refused(folder, "interactions.parquet", "No such file")


def test_a_file_that_is_no_parquet_is_refused(folder: Path) -> None:
    (folder / "interactions.parquet").write_bytes(b"secret-a,hidden-1")
    refused(folder, "interactions.parquet", "Parquet", "17 bytes")


@pytest.mark.parametrize("column", ["user", "item", "split"])
def test_a_missing_column_is_named_and_others_are_only_counted(tmp_path: Path, column: str) -> None:
    table = INTERACTIONS.rename({column: "hidden-1"})
    refused(own(tmp_path, table), "interactions.parquet", f"a column '{column}'", "got 3 columns of other names")


def test_ids_must_be_strings_or_integers_and_present(tmp_path: Path) -> None:
    refused(own(tmp_path, INTERACTIONS.with_columns(user=pl.lit(True))), "column 'user'", "Boolean")
    refused(own(tmp_path, INTERACTIONS.with_columns(item=pl.lit(""))), "column 'item'", "5 are missing")
    gap = INTERACTIONS.with_columns(user=pl.when(pl.col("item") == "hidden-3").then(None).otherwise("user"))
    refused(own(tmp_path, gap), "column 'user'", "1 are missing")


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    table = INTERACTIONS.with_columns(split=pl.col("split").replace("valid", "hidden"))
    refused(own(tmp_path, table), "train, valid, test or met", "in 1 row")


def test_without_training_interactions_there_is_no_shard(tmp_path: Path) -> None:
    refused(own(tmp_path, INTERACTIONS.tail(2)), "at least one training interaction", "none in 2 rows")


def test_the_catalogue_has_every_item_once_and_titles_are_strings(folder: Path) -> None:
    (folder / "shard.json").unlink()
    ITEMS.head(3).write_parquet(folder / "items.parquet")
    refused(folder, "items.parquet", "2 interactions")
    pl.concat([ITEMS, ITEMS]).write_parquet(folder / "items.parquet")
    refused(folder, "items.parquet", "each item once", "4 rows")
    ITEMS.with_columns(title=pl.lit(3)).write_parquet(folder / "items.parquet")
    refused(folder, "items.parquet", "'title'", "Int32")


def test_a_large_shard_loads_fast(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 20_000, 600_000), rng.integers(0, 30_000, 600_000)
    write_shard(tmp_path, "large", pl.DataFrame({"user": users, "item": items, "split": "train"}), None)
    start = time.process_time()  # its own, whatever else the machine does
    shard = load_shard(tmp_path)
    assert isinstance(shard, Shard) and shard.train.shape == (20_000, 30_000)
    assert time.process_time() - start < 5.0  # a fraction of a second on an idle machine
