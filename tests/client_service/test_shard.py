"""A shard is written, read back, checked against its head, and never quotes an id when it is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from client_service.shard import Shard, read_shard, write_shard
from shared.errors import DataError

INTERACTIONS = pl.DataFrame(
    {
        "user": ["secret-b", "secret-a", "secret-a", "secret-b", "secret-a"],
        "item": ["hidden-2", "hidden-1", "hidden-2", "hidden-1", "hidden-3"],
        "split": ["train", "train", "train", "valid", "test"],
    }
)
ITEMS = pl.DataFrame({"item": ["hidden-3", "hidden-1", "hidden-4", "hidden-2"], "title": ["Three", "One", None, "Two"]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shard(tmp_path / "shop", "shop", INTERACTIONS, ITEMS, ["a note"])
    return tmp_path / "shop"


def refused(folder: Path, *words: str) -> str:
    """The message with which the shard is refused; it has all the words and no id."""
    with pytest.raises(DataError) as raised:
        read_shard(folder)
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


def test_what_is_written_comes_back(folder: Path) -> None:
    shard = read_shard(folder)
    assert (shard.name, shard.notes) == ("shop", ("a note",))
    assert shard.user_ids == ("secret-a", "secret-b")
    assert shard.item_ids == ("hidden-1", "hidden-2", "hidden-3", "hidden-4")
    assert shard.titles == ("One", "Two", "Three", None)
    assert shard.train.toarray().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0]]
    assert shard.valid.toarray().tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert shard.test.toarray().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert shard.train.dtype == np.float64 and shard.train.has_sorted_indices


def test_an_id_leads_to_its_row_and_an_unknown_one_to_none(folder: Path) -> None:
    shard = read_shard(folder)
    assert (shard.user_row("secret-b"), shard.user_row("nobody")) == (1, None)
    assert (shard.item_row("hidden-4"), shard.item_row("nothing")) == (3, None)


def test_the_head_counts_what_is_in_the_files(folder: Path) -> None:
    head = json.loads((folder / "shard.json").read_text())
    assert head.pop("digest") == read_shard(folder).digest
    sizes = {"users": 2, "items": 4, "train": 3, "valid": 1, "test": 1}
    assert head == {"format": "lpsfed-shard/1", "name": "shop", "notes": ["a note"], **sizes}


def test_the_digest_depends_on_the_content_alone(tmp_path: Path) -> None:
    def digest(interactions: pl.DataFrame, items: pl.DataFrame, name: str = "x") -> str:
        return write_shard(tmp_path / name, name, interactions, items).digest

    base = digest(INTERACTIONS, ITEMS)
    assert digest(INTERACTIONS.reverse(), ITEMS.reverse(), "y") == base
    assert digest(INTERACTIONS.head(4), ITEMS) != base
    assert digest(INTERACTIONS, ITEMS.with_columns(title=pl.lit("same"))) != base


def test_writing_again_replaces_the_shard_and_leaves_no_other_files(folder: Path) -> None:
    write_shard(folder, "shop", INTERACTIONS.head(3), None)
    assert read_shard(folder).test.nnz == 0
    assert sorted(file.name for file in folder.iterdir()) == ["interactions.parquet", "items.parquet", "shard.json"]


def test_users_without_a_training_item_and_repeated_pairs_are_dropped_and_counted(tmp_path: Path) -> None:
    extra = pl.DataFrame(
        {"user": ["secret-c", "secret-a", "secret-a"], "item": ["hidden-1"] * 3, "split": ["test", "test", "train"]}
    )
    head = write_shard(tmp_path, "shop", pl.concat([INTERACTIONS, extra]), None)
    assert (head.users, head.train, head.test) == (2, 3, 1)
    assert head.notes == (
        "1 duplicate pairs dropped",
        "1 pairs in more than one split kept in the first only",
        "1 users without a training item dropped, with their 1 pairs",
    )


def test_interactions_alone_are_a_shard_named_after_the_folder(tmp_path: Path) -> None:
    shard = read_shard(own(tmp_path / "hospital", INTERACTIONS))
    assert (shard.name, shard.titles, len(shard.item_ids)) == ("hospital", None, 3)


def test_integer_ids_become_strings(tmp_path: Path) -> None:
    table = pl.DataFrame({"user": [10, 9], "item": [7, 8], "split": ["train", "train"]})
    shard = read_shard(own(tmp_path, table))
    assert (shard.user_ids, shard.item_ids) == (("10", "9"), ("7", "8"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "lpsfed-shard/3"}, ("shard.json", "'lpsfed-shard/1'", "'lpsfed-shard/3'")),
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
    refused(own(tmp_path, INTERACTIONS.with_columns(user=pl.lit(1.5))), "column 'user'", "Float64")
    refused(own(tmp_path, INTERACTIONS.with_columns(item=pl.lit(""))), "column 'item'", "5 are missing")
    gap = INTERACTIONS.with_columns(user=pl.when(pl.col("item") == "hidden-3").then(None).otherwise("user"))
    refused(own(tmp_path, gap), "column 'user'", "1 are missing")


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    table = INTERACTIONS.with_columns(split=pl.col("split").replace("valid", "hidden"))
    refused(own(tmp_path, table), "train, valid or test", "1 rows")


def test_without_training_interactions_there_is_no_shard(tmp_path: Path) -> None:
    refused(own(tmp_path, INTERACTIONS.tail(2)), "at least one training interaction", "none among 2 rows")


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
    start = time.perf_counter()
    shard = read_shard(tmp_path)
    assert isinstance(shard, Shard) and shard.train.shape == (20_000, 30_000)
    assert time.perf_counter() - start < 5.0  # a fraction of a second on an idle machine
