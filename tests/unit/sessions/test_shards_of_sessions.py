"""A folder <-> a shard of sessions: nothing is lost, and what is wrong is named without an id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_service.data.interaction_files import load_shard, write_shard
from client_service.data.session_files import load_session_shard, save_session_shard
from client_service.data.sessions import SessionShard
from shared.errors import DataError

ROWS = [("a", "x", "train"), ("a", "y", "train"), ("a", "x", "train"), ("b", "z", "test"), ("b", "x", "test")]


def write(folder: Path, rows: list[tuple[str, str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    pl.DataFrame(rows, schema=["session", "item", "split"], orient="row").write_parquet(folder / "sessions.parquet")
    return folder


def test_a_shard_comes_back_as_it_was_written(shop: SessionShard, tmp_path: Path) -> None:
    save_session_shard(tmp_path / "again", shop)
    found = load_session_shard(tmp_path / "again")
    assert found.digest == shop.digest and found.item_ids == shop.item_ids
    assert (found.clicks == shop.clicks).all() and (found.splits == shop.splits).all()


def test_a_table_of_one_s_own_needs_no_head(tmp_path: Path) -> None:
    found = load_session_shard(write(tmp_path / "shop", ROWS))
    assert found.name == "shop" and found.item_ids == ("x", "y", "z")
    assert found.clicks.tolist() == [0, 1, 0, 2, 0] and found.starts.tolist() == [0, 3, 5]
    assert found.splits.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: [rows[0], rows[3], rows[1]], "one after the other"),
        (lambda rows: [rows[0], ("a", "y", "test")], "one split for all clicks"),
        (lambda rows: [*rows, ("c", "x", "later")], "expected train, valid or test"),
        (lambda rows: [rows[0], rows[3], rows[4]], "a training session of two or more clicks"),
    ],
)
def test_what_makes_no_sessions_is_named(
    tmp_path: Path, change: Callable[[list[tuple[str, str, str]]], list[tuple[str, str, str]]], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        load_session_shard(write(tmp_path / "shop", change(ROWS)))


def test_a_shard_whose_file_was_changed_is_refused(shop: SessionShard, tmp_path: Path) -> None:
    save_session_shard(tmp_path / "again", shop)
    path = tmp_path / "again" / "sessions.parquet"
    pl.read_parquet(path).with_columns(item=pl.col("item").reverse()).write_parquet(path)
    with pytest.raises(DataError, match="expected digest"):
        load_session_shard(tmp_path / "again")


def test_places_in_a_catalogue_change_the_digest_and_not_the_folder(shop: SessionShard, tmp_path: Path) -> None:
    placed = shop.with_places(np.arange(len(shop.item_ids)) + 5, "c" * 64)
    assert placed.digest != shop.digest
    save_session_shard(tmp_path / "again", placed)
    assert load_session_shard(tmp_path / "again").digest == shop.digest


def test_a_shard_of_another_task_is_told_as_such(shop: SessionShard, tmp_path: Path) -> None:
    save_session_shard(tmp_path / "visits", shop)
    with pytest.raises(DataError, match=r"expected a shard of interactions of users, .*got 'lpsfed-sessions/1'"):
        load_shard(tmp_path / "visits")
    rows = pl.DataFrame([("a", "x", "train")], schema=["user", "item", "split"], orient="row")
    write_shard(tmp_path / "users", "users", rows, None)
    (tmp_path / "users" / "sessions.parquet").touch()
    with pytest.raises(DataError, match=r"expected a shard of sessions, .*got 'lpsfed-shard/1'"):
        load_session_shard(tmp_path / "users")
