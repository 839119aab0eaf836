"""`lpsfed worth`: figures and words for a silo's operator, from its own folder, and nothing of it is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.errors import DataError
from simulation.cli import app
from tests.support.given import Silos


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_silo_s_worth_is_told_as_words_and_as_json_and_its_folder_stays(silos: Silos) -> None:
    [folder] = silos(1, users=60, items=30)
    before = contents(folder)
    told = CliRunner().invoke(app, ["worth", str(folder), "--draws", "2"], catch_exceptions=False)
    assert "- a federation of about 4 silos like yours that sell the same items: NDCG@20 0." in told.stdout
    assert "user-" not in told.output and "item-" not in told.output
    answer = json.loads(CliRunner().invoke(app, ["worth", str(folder), "--draws", "2", "--json"]).stdout)
    assert [one["times"] for one in answer["curve"]["outlooks"]] == [2, 4, 8, 16] and not answer["few"]
    assert answer["sentences"][0] in told.stdout and contents(folder) == before


def test_few_users_and_no_shard_are_said_clearly(silos: Silos, tmp_path: Path) -> None:
    [folder] = silos(1)
    told = CliRunner().invoke(app, ["worth", str(folder)], catch_exceptions=False)
    assert told.exit_code == 0 and "Too few to say: expected at least 50 users" in told.stdout
    with pytest.raises(DataError, match="expected"):
        CliRunner().invoke(app, ["worth", str(tmp_path)], catch_exceptions=False)


def test_a_file_s_worth_is_told_with_how_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    rows = "".join(f"{user};{(user + n) % 11};{1 + n % 5}\n" for user in range(12) for n in range(9))
    path.write_text("customer;product;stars\n" + rows)
    words = ["worth", str(path), "--columns", "user=customer,item=product,rating=stars"]
    told = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "Too few to say" in told.stdout and "rated interactions, below 4, are not positive" in told.stderr
