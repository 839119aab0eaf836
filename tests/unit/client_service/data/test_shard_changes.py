"""Events are appended and erased: another digest, whole or not at all, and no word of an id."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

import polars as pl
import pytest

from client_service.data.files import commit_files
from client_service.data.interaction_files import change_shard, load_shard, shard_head, write_shard
from client_service.data.interactions import Shard
from client_service.data.shard_head import load_head_if_present
from client_service.event_log.shard_update import append_events, erase_events, erase_users
from shared.errors import DataError

WHERE = Path("events.csv")
FILES = ["interactions.parquet", "items.parquet", "shard.json"]
OPERATIONS = {"open", "os.listdir", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.scandir", "shutil.rmtree"}


def table(*rows: str) -> pl.DataFrame:
    """Rows as "user item split time"."""
    named = pl.DataFrame([row.split() for row in rows], schema=["user", "item", "split", "time"], orient="row")
    return named.cast({"time": pl.Int64})


FIRST = table("secret-a hidden-1 train 1", "secret-a hidden-2 valid 2", "secret-b hidden-2 train 3")
LATER = table("secret-b hidden-3 train 4", "secret-c hidden-1 train 5", "secret-c hidden-3 test 6")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shard(tmp_path / "shop", "shop", FIRST, None)
    return tmp_path / "shop"


def written(tmp_path: Path, events: pl.DataFrame, items: list[str]) -> Shard:
    """The shard of these events and this catalogue, written at once."""
    write_shard(tmp_path / "whole", "shop", events, pl.DataFrame({"item": items}))
    return load_shard(tmp_path / "whole")


def digests(shard: Shard) -> tuple[str, str | None]:
    return shard.digest, shard.events_digest


def test_what_is_appended_makes_the_shard_of_all_events(folder: Path, tmp_path: Path) -> None:
    before, after = change_shard(folder, lambda shard: append_events(shard, LATER, WHERE))
    whole = written(tmp_path, pl.concat([LATER, FIRST]), ["hidden-1", "hidden-2", "hidden-3"])
    assert digests(after) == digests(whole) == digests(load_shard(folder))
    assert before.digest != after.digest and before.events_digest != after.events_digest
    assert after.events_with_ids().sort("time").drop("split").rows() == pl.concat([FIRST, LATER]).drop("split").rows()


def test_events_without_split_or_time_are_for_training(folder: Path) -> None:
    shard = append_events(load_shard(folder), pl.DataFrame({"user": ["secret-b"], "item": ["hidden-1"]}), WHERE)
    assert shard.events.filter(user=1, item=0).rows() == [(1, 0, "train", None)]


def test_a_pair_that_is_there_stays_in_the_earlier_split_and_changes_nothing_else(folder: Path) -> None:
    shard = load_shard(folder)
    same = append_events(shard, table("secret-a hidden-1 test 9"), WHERE)
    assert digests(same) == digests(shard)
    assert same.notes == ("1 pair in more than one split kept in the first only",)
    moved = append_events(shard, table("secret-a hidden-2 train 9"), WHERE)
    assert moved.valid.nnz == 0 and moved.events.filter(user=0, item=1).rows() == [(0, 1, "train", 9)]


def test_a_new_item_brings_its_title(folder: Path) -> None:
    items = pl.DataFrame({"item": ["hidden-3", "hidden-9"], "title": ["Three", "Nine"]})
    shard = append_events(load_shard(folder), LATER, WHERE, items)
    assert (shard.item_ids, shard.titles) == (("hidden-1", "hidden-2", "hidden-3"), (None, None, "Three"))


def test_erased_users_are_in_none_of_the_files(folder: Path, tmp_path: Path) -> None:
    before, after = change_shard(folder, lambda shard: erase_users(shard, ["secret-a", "nobody"]))
    whole = written(tmp_path, FIRST.filter(pl.col("user") == "secret-b"), ["hidden-1", "hidden-2"])
    assert digests(after) == digests(whole) and before.digest != after.digest
    assert pl.read_parquet(folder / "interactions.parquet")["user"].unique().to_list() == ["secret-b"]
    assert not any(b"secret-a" in path.read_bytes() for path in folder.iterdir())


def test_with_the_last_training_item_a_user_goes_too(folder: Path) -> None:
    pairs = pl.DataFrame({"user": ["secret-a", "secret-b"], "item": ["hidden-1", "hidden-9"]})
    shard = erase_events(load_shard(folder), pairs, WHERE)
    assert (shard.user_ids, shard.notes) == (
        ("secret-b",),
        ("1 user without a training item dropped, with 1 pair kept as met",),
    )


def test_what_was_appended_and_erased_again_leaves_the_pairs_that_were_there(folder: Path) -> None:
    shard, event = load_shard(folder), table("secret-b hidden-1 train 7")
    again = erase_events(append_events(shard, event, WHERE), event, WHERE)
    assert digests(again) == digests(shard)


def test_what_was_met_is_kept_beside_the_positives_and_changes_no_digest_of_theirs(folder: Path) -> None:
    """Also of users who like nothing, and of items outside the catalogue: these stay outside."""
    low = table("secret-a hidden-9 met 5", "secret-b hidden-1 met 6", "secret-c hidden-1 met 7")
    before, after = change_shard(folder, lambda shard: append_events(shard, low, WHERE))
    found = load_shard(folder)
    assert (before.digest, before.events_digest, before.item_ids) == (found.digest, found.events_digest, found.item_ids)
    assert before.lists_digest == before.digest != found.lists_digest == after.lists_digest
    assert load_head_if_present(folder) == shard_head(found) and shard_head(found).lists_digest == found.lists_digest
    assert found.met.toarray().tolist() == [[0, 0], [1, 0]] and found.met_only_users == {"secret-c"}
    assert [found.met_items(user).tolist() for user in ("secret-a", "secret-b", "secret-c", "nobody")] == [
        [], [0], [0], []
    ]  # fmt: skip
    assert found.known_pairs.toarray().tolist() == [[1, 1], [1, 1]]
    joined = append_events(found, table("secret-b hidden-9 train 8"), WHERE)  # the item is in the catalogue from now on
    assert joined.met.toarray().tolist() == [[0, 0, 1], [1, 0, 0]]
    erased = erase_users(erase_users(found, ["secret-a"]), ["secret-c"])
    assert erased.met_events is not None and erased.met_events["user"].to_list() == ["secret-b"]
    assert erase_events(found, low, WHERE).lists_digest == before.digest


def test_of_a_pair_that_is_liked_and_met_the_later_event_decides(folder: Path) -> None:
    """Where no times tell, that which is appended."""
    shard = append_events(load_shard(folder), table("secret-b hidden-1 train 5"), WHERE)

    def after(*events: pl.DataFrame) -> tuple[bool, bool]:
        found = shard
        for event in events:
            found = append_events(found, event, WHERE)
        return bool(found.train[1, 0]), bool(found.met[1, 0])

    liked, met = ([table(f"secret-b hidden-1 {kind} {time}") for time in (4, 6, 8)] for kind in ("train", "met"))
    timeless = met[0].drop("time")
    assert after(met[1]) == (False, True) and after(met[0]) == (True, False)
    assert after(met[1], liked[2]) == (True, False) and after(met[2], liked[1]) == (False, True)
    assert after(met[1], met[2], liked[1]) == (False, True)
    assert after(timeless) == (False, True) and after(timeless, liked[0].drop("time")) == (True, False)
    assert after(pl.concat([met[1], liked[2]])) == (True, False) == after(pl.concat([liked[2], met[1]]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda shard: erase_users(shard, ["secret-a", "secret-b"]), "at least one training interaction"),
        (lambda shard: append_events(shard, LATER.drop("item"), WHERE), "a column 'item'"),
        (lambda shard: append_events(shard, LATER.with_columns(time=pl.lit("soon")), WHERE), "3 of 3 rows"),
        (lambda shard: append_events(shard, LATER, WHERE, LATER), "each item once"),
        (lambda shard: erase_events(shard, LATER.drop("user"), WHERE), "a column 'user'"),
    ],
)
def test_a_refused_change_names_no_id_and_leaves_the_shard(folder: Path, change: object, words: str) -> None:
    before = digests(load_shard(folder))
    with pytest.raises(DataError, match=words) as raised:
        change_shard(folder, change)  # type: ignore[arg-type]
    assert "secret" not in str(raised.value) and "hidden" not in str(raised.value)
    assert digests(load_shard(folder)) == before


def test_two_do_not_change_a_shard_at_once(folder: Path) -> None:
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="nobody else is changing"):
            change_shard(folder, lambda shard: shard)
    with pytest.raises(DataError, match="can be written"):
        change_shard(folder / "nowhere", lambda shard: shard)


def killed_at(operation: int, folder: Path, files: dict[str, bytes]) -> bool:
    """Whether a process that replaces the files is killed: at its operation of this number on the disk, if it comes."""
    child = os.fork()
    if child == 0:
        left = operation

        def strike(event: str, _: object) -> None:
            nonlocal left
            if event in OPERATIONS:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(strike)
        commit_files(folder, files)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_kill_at_any_moment_leaves_the_old_shard_or_the_new_one(folder: Path, tmp_path: Path) -> None:
    old = load_shard(folder)
    contents = {name: (folder / name).read_bytes() for name in FILES}
    new = written(tmp_path, pl.concat([FIRST, LATER]), ["hidden-1", "hidden-2", "hidden-3"])
    files = {name: (tmp_path / "whole" / name).read_bytes() for name in FILES}
    seen, operation = [], 0
    while killed_at(operation, folder, files):
        seen.append(digests(load_shard(folder)))
        commit_files(folder, contents)  # whatever was left behind, the next change goes through and tidies up
        assert sorted(path.name for path in folder.iterdir()) == FILES
        assert digests(load_shard(folder)) == digests(old)
        operation += 1
    assert digests(load_shard(folder)) == digests(new)
    change = seen.index(digests(new))
    assert 5 < change < len(seen) - 5
    assert seen == [digests(old)] * change + [digests(new)] * (len(seen) - change)
