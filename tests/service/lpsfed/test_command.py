"""`lpsfed recommend`: lists of some users on the terminal, and of all users in a file."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from client_service.data.interactions import Shard
from client_service.settings import ClientSettings
from lpsfed import Recommendations, RecommendedItem
from simulation.cli import app
from simulation.operating import lists_file
from simulation.operating.lists_file import save_lists
from tests.service.lpsfed.conftest import KEY


@pytest.fixture
def place(shared_silo: str, keyed_settings: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the settings of the silo, as `lpsfed join` writes them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "application.key").write_text(KEY + "\n")
    lines = {"shard": str(keyed_settings.shard), "application_key_file": str(tmp_path / "application.key")}
    values = [f"{name} = {json.dumps(value)}" for name, value in lines.items()]
    (tmp_path / "silo.toml").write_text("\n".join([*values, f"port = {shared_silo.rpartition(':')[2]}"]))
    return tmp_path


def ask(*words: object) -> Result:
    return CliRunner().invoke(app, ["recommend", *map(str, words)], env={"COLUMNS": "100"})


def test_one_user_s_list_is_shown_by_the_settings_at_hand(place: Path, shared_shard: Shard) -> None:
    shown = ask(shared_shard.user_ids[0], "--k", "3")
    assert shown.exit_code == 0, shown.output
    assert f"For {shared_shard.user_ids[0]}" in shown.stdout and shown.stdout.count("item-") >= 3
    assert "popular items: unknown user" in ask("nobody").stdout
    [found] = json.loads(ask(shared_shard.user_ids[0], "--k", "3", "--json").stdout)
    assert len(found["items"]) == 3 and found["model"] == "run-1.0"
    assert place.is_dir()


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson"])
def test_all_users_lists_go_into_a_file(place: Path, shared_shard: Shard, suffix: str) -> None:
    out = place / f"lists{suffix}"
    done = ask("--all", "--k", "4", "--out", out, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout) == {"file": str(out), "users": len(shared_shard.user_ids)}
    read = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".ndjson": pl.read_ndjson}[suffix]
    rows = read(out)  # type: ignore[operator]
    assert rows.columns == [*lists_file.ROWS] and sorted(set(rows["user"])) == sorted(shared_shard.user_ids)
    assert set(rows["rank"]) == {1, 2, 3, 4} and rows["score"].is_between(0, 1).all()
    assert {path.name for path in place.iterdir() if path.name.startswith(".")} == set()


def test_users_come_from_a_file_or_from_a_shard(
    place: Path, keyed_settings: ClientSettings, shared_shard: Shard
) -> None:
    (place / "users.txt").write_text("\n".join([*shared_shard.user_ids[:2], "nobody"]) + "\n")
    assert ask("--users", place / "users.txt", "--out", place / "some.csv").exit_code == 0
    rows = pl.read_csv(place / "some.csv")
    assert rows["user"].unique(maintain_order=True).to_list() == [*shared_shard.user_ids[:2], "nobody"]
    assert set(rows.filter(pl.col("user") == "nobody")["fallback"]) == {"unknown user"}
    silo = json.loads(ask(shared_shard.user_ids[0], "--json").stdout)
    port = (place / "silo.toml").read_text().rpartition(" = ")[2]
    (place / "silo.toml").rename(place / "elsewhere.toml")
    flags = ["--client-url", f"http://127.0.0.1:{port}", "--application-key-file", place / "application.key"]
    assert json.loads(ask(shared_shard.user_ids[0], *flags, "--json").stdout) == silo
    assert ask("--all", "--shard", keyed_settings.shard, *flags, "--out", place / "all.csv").exit_code == 0
    assert "expected the silo's shard" in str(ask("--all", *flags, "--out", place / "all.csv").exception)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "expected one of: ids of users"),
        (("u", "--all"), "expected one of: ids of users"),
        (("--all", "--out", "lists.xlsx"), "expected a file that ends in .parquet, .csv, .ndjson, got lists.xlsx"),
        (("--all", "--out", "nowhere/lists.csv"), "expected a file in a folder that is there"),
        (("--all", "--out", "lists.csv", "--explain"), "expected lists on the terminal"),
        (("--users", "nothing.txt"), "expected ids of users, one a line, got none"),
        (("u", "--client-url", "silo"), "expected http://HOST:PORT"),
        (("u", "--application-key-file", "nothing.txt"), "expected a key in the file, got nothing"),
        (("u", "--application-key-file", "no.key"), "expected a file with a key, got: No such file"),
        (("u", "--application-key-file", "bytes.key"), "got bytes that are no ASCII text"),
        (("u", "--filter", "nonsense"), "422 filter"),
    ],
)
def test_what_cannot_be_asked_is_one_line(place: Path, words: tuple[str, ...], reason: str) -> None:
    (place / "nothing.txt").write_text("\n")
    (place / "bytes.key").write_bytes(b"\xff")
    refused = ask(*words)
    assert refused.exit_code == 1 and reason in str(refused.exception)


def test_a_list_that_fails_on_the_way_leaves_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "lists.csv"
    out.write_text("before")

    def broken() -> object:
        yield Recommendations((RecommendedItem("i", 0.5),), "u")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        save_lists(broken(), out)  # type: ignore[arg-type]
    assert out.read_text() == "before" and list(tmp_path.iterdir()) == [out]


def test_lists_are_written_in_parts_and_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_file, "LISTS_PER_PART", 3)
    lists = [Recommendations((RecommendedItem("a", 0.5), RecommendedItem("b", 0.25)), f"u{n}") for n in range(10)]
    assert save_lists(lists, tmp_path / "lists.parquet") == 10
    rows = pl.read_parquet(tmp_path / "lists.parquet")
    assert rows["user"].to_list() == [f"u{n}" for n in range(10) for _ in range(2)]
    assert rows["rank"].to_list() == [1, 2] * 10
    assert save_lists([], tmp_path / "none.parquet") == 0 and pl.read_parquet(tmp_path / "none.parquet").is_empty()
