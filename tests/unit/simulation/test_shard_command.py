"""`lpsfed shard`: what an operator does to a shard, and that nothing printed holds an id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from client_service.data.interaction_files import load_shard, write_shard
from client_service.text.feature_file import FeatureFile, write_feature_file
from client_service.text.item_features import item_features
from shared.errors import DataError, SettingsError
from simulation.cli import app

FIRST = pl.DataFrame(
    {"user": ["secret-a", "secret b"] * 2, "item": ["hidden-1", "hidden-2", "hidden-2", "hidden-1"], "split": "train"}
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shard(tmp_path / "shop", "shop", FIRST, None)
    return tmp_path / "shop"


def shard(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["shard", *map(str, arguments)])
    assert "secret" not in result.output and "hidden" not in result.output
    return result


def heads(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    return said["before"], said["after"]


def test_interactions_of_a_csv_are_appended_with_their_times_and_titles(folder: Path, tmp_path: Path) -> None:
    events, items = tmp_path / "events.csv", tmp_path / "items.csv"
    events.write_text("user,item,timestamp\nsecret-c,hidden-3,2015-03-14\nsecret-a,hidden-1,5\n")
    items.write_text("item,title\nhidden-3,Three\n")
    before, after = heads(shard("append", folder, events, "--items", items, "--json"))
    assert (before["format"], before["train"], after["format"], after["train"]) == (
        "lpsfed-shard/1",
        4,
        "lpsfed-shard/2",
        5,
    )
    assert after["notes"] == ["1 duplicate pair dropped"] and before["digest"] != after["digest"]
    new = load_shard(folder)
    assert new.titles == (None, None, "Three") and new.events.filter(user=2)["time"].to_list() == [1_426_291_200]


def test_users_are_erased_by_id_or_by_a_file(folder: Path, tmp_path: Path) -> None:
    result = shard("erase", folder, "--user", "secret-a")
    assert "before: 2 users" in result.stdout and "after: 1 user," in result.stdout and result.exit_code == 0
    write_shard(folder, "shop", FIRST, None)
    (tmp_path / "users.txt").write_text("secret b\nsecret-z\n")
    assert heads(shard("erase", folder, "--users", tmp_path / "users.txt", "--json"))[1]["users"] == 1
    assert load_shard(folder).user_ids == ("secret-a",)


def test_single_interactions_are_erased(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user,item\nsecret-a,hidden-2\n")
    before, after = heads(shard("erase", folder, "--events", tmp_path / "events.csv", "--json"))
    assert (before["train"], after["train"], after["users"]) == (4, 3, 2)


def test_what_cannot_be_done_is_said_without_an_id(folder: Path, tmp_path: Path) -> None:
    digest = load_shard(folder).digest
    (tmp_path / "events.csv").write_text("user,item,time\nsecret-c,hidden-3,soon\n")
    refused = [
        (shard("append", folder, tmp_path / "events.csv"), DataError),
        (shard("append", folder, tmp_path / "none.csv"), DataError),
        (shard("append", folder, tmp_path / "events.xls"), DataError),
        (shard("erase", folder), SettingsError),
        (shard("erase", folder, "--user", "secret-a", "--user", "secret b"), DataError),
        (shard("erase", folder, "--user", "secret-a", "--events", tmp_path / "events.csv"), SettingsError),
    ]
    for result, kind in refused:
        assert isinstance(result.exception, kind)
        assert "secret" not in str(result.exception) and "hidden" not in str(result.exception)
    assert load_shard(folder).digest == digest


def encode(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["encode", *map(str, arguments)])
    assert "secret" not in result.output and "hidden" not in result.output
    return result


ITEMS = (
    "item,title,genres,tags,colour\nhidden-1,Heat (1995),Crime,great,red\nhidden-2,Das Boot (1981),War|Drama,sad,blue\n"
)


def test_items_are_encoded_and_a_shard_keeps_and_forgets_their_vectors(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(ITEMS)
    vectors = tmp_path / "features.npz"
    told = json.loads(encode(tmp_path / "items.csv", "--out", vectors, "--json").stdout)
    assert (told["items"], told["known"], told["width"], told["columns"]) == (2, 2, 64, ["genres"])
    assert item_features(load_shard(folder)) is None
    result = shard("features", folder, vectors, "--json")
    assert json.loads(result.stdout) == {"items": 2, "known": 2, "encoder": "projection/64/1", "notes": []}
    kept = item_features(load_shard(folder))
    assert kept is not None and kept.values.any(axis=1).all()
    assert shard("features", folder, "--remove").exit_code == 0
    assert item_features(load_shard(folder)) is None


def test_a_parquet_file_and_a_shard_are_encoded_and_another_column_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(ITEMS)
    table = pl.read_csv(tmp_path / "items.csv")
    table.write_parquet(tmp_path / "items.parquet")
    one, other, like = tmp_path / "one.npz", tmp_path / "other.npz", tmp_path / "like.npz"
    more = json.loads(encode(tmp_path / "items.parquet", "--out", one, "--attribute", "colour", "--json").stdout)
    assert more["columns"] == ["colour", "genres"]
    write_shard(tmp_path / "other", "other", FIRST, table)
    whole = json.loads(encode(tmp_path / "other", "--out", other, "--json").stdout)
    assert whole["columns"] == ["colour", "genres"] and whole["digest"] == more["digest"]
    again = json.loads(encode(tmp_path / "other", "--out", like, "--like", other, "--json").stdout)
    assert again["digest"] == whole["digest"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--attribute", "tags"], "which users make"),
        (["--encoder", "bert"], "expected projection, svd, glove"),
        (["--encoder", "svd"], "a smaller --width"),
        (["--like", "items.csv"], "expected an npz archive"),
    ],
)
def test_what_cannot_be_encoded_is_refused(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.csv").write_text(ITEMS)
    result = encode("items.csv", "--out", "features.npz", *arguments)
    assert result.exit_code == 1 and words in str(result.exception) and not (tmp_path / "features.npz").exists()


def test_vectors_of_other_items_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,title\nother,Heat\n")
    encode(tmp_path / "items.csv", "--out", tmp_path / "features.npz")
    result = shard("features", folder, tmp_path / "features.npz")
    assert isinstance(result.exception, DataError) and "this shard's items" in str(result.exception)
    assert item_features(load_shard(folder)) is None
    assert isinstance(shard("features", folder).exception, SettingsError)


def test_an_encoder_that_a_server_cannot_run_is_said(folder: Path, tmp_path: Path) -> None:
    vectors = np.eye(2, 4, dtype=np.float32)
    write_feature_file(tmp_path / "features.npz", FeatureFile(("hidden-1", "hidden-2"), vectors, "glove-6b/50/1"))
    said = json.loads(shard("features", folder, tmp_path / "features.npz", "--json").stdout)
    assert said["known"] == 2 and "a server cannot run this encoder" in said["notes"][0]
    kept = item_features(load_shard(folder))
    assert kept is not None and kept.text_encoder is None
    np.testing.assert_array_equal(kept.values, vectors)
