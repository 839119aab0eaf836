"""`lpsfed shard`: what an operator does to a shard, and that nothing printed holds an id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from client_service.data.interaction_files import load_shard, write_shard
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
