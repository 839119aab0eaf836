"""Data, groups, the centralised view and the checksums."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from benchmarks.harness import command
from benchmarks.harness import data as checksums
from benchmarks.harness.command import main
from benchmarks.harness.data import Cache, drop_thin_users, verify_data
from benchmarks.harness.groups import activity_groups, measure_groups, structure_groups
from benchmarks.harness.measure import locate_client
from benchmarks.harness.plan import Block
from benchmarks.harness.store import read_known
from client_service.data.interaction_files import load_shard
from client_service.evaluation.ranking import measure_test, rank_by_scores
from client_service.models.ranker import Rows
from shared.errors import DataError, SettingsError

Silos = Callable[..., tuple[Path, ...]]


def test_thin_users_and_items_go_until_none_is_left() -> None:
    # c has 2 records, so u3 keeps 1 of 2 once c is gone, and goes too; then b has still 2
    pairs = [("u1", "a"), ("u1", "b"), ("u2", "a"), ("u2", "b"), ("u3", "a"), ("u3", "c")]
    table = pl.DataFrame(pairs, schema=["user", "item"], orient="row").with_columns(split=pl.lit("train"))
    assert drop_thin_users(table, 2)["user"].unique().sort().to_list() == ["u1", "u2"]
    assert len(drop_thin_users(table, 0)) == 6


def test_shards_are_cut_once_and_the_whole_has_every_edge(tmp_path: Path) -> None:
    cache, block = Cache(tmp_path, None), Block(data=("synthetic-200x100",), clients=2)
    first = cache.shards("synthetic-200x100", block, 0)
    stamp = (first.paths[0] / "interactions.parquet").stat().st_mtime_ns
    again = cache.shards("synthetic-200x100", block, 0)
    assert again.paths == first.paths and (again.paths[0] / "interactions.parquet").stat().st_mtime_ns == stamp
    whole = load_shard(cache.cut_whole("synthetic-200x100", block))
    parts = [load_shard(path) for path in first.paths]
    assert first.edges_kept == pytest.approx(sum(part.train.nnz for part in parts) / whole.train.nnz)
    assert set().union(*(part.item_ids for part in parts)) <= set(whole.item_ids)


def test_missing_data_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="expected --data"):
        Cache(tmp_path, None).data_path("gowalla")
    assert "got nothing there" in Cache(tmp_path, tmp_path).data_problem("gowalla")
    assert Cache(tmp_path, None).data_problem("synthetic-200x100") == ""


def test_groups_are_three_to_two_to_one_with_the_fewest_records_first() -> None:
    assert activity_groups(np.array([9.0, 1, 5, 3, 2, 4])).tolist() == [2, 0, 1, 0, 0, 1]
    assert np.bincount(activity_groups(np.arange(60.0))).tolist() == [30, 20, 10]


def test_groups_of_users_average_to_the_whole_and_items_count_only_their_own(silos: Silos) -> None:
    shard = load_shard(silos(1)[0])
    top = rank_by_scores(lambda rows: np.broadcast_to(np.arange(12.0), (len(rows), 12)))
    found, whole = measure_groups(shard, top), measure_test(shard, top)
    weights = [users for _, _, users in found["users"].values()]
    assert sum(weights) == whole.users
    assert np.average([ndcg for _, ndcg, _ in found["users"].values()], weights=weights) == pytest.approx(
        whole.values["ndcg"]
    )
    assert sum(users for _, _, users in found["items"].values()) == shard.test.nnz  # one test item each


def test_fifteen_clients_are_one_large_four_medium_and_ten_small() -> None:
    clients = [{"client": f"c{n}", "users": 10 * n, "items": 1} for n in range(1, 16)]
    found = structure_groups(clients)
    assert [len(of) for of in found.values()] == [1, 4, 10]
    assert [one["client"] for one in found["large"]] == ["c15"] and found["small"][-1]["client"] == "c1"


def test_the_centralised_lists_hold_a_client_s_items_alone(tmp_path: Path) -> None:
    cache, block = Cache(tmp_path, None), Block(data=("synthetic-200x100",), clients=2)
    whole = load_shard(cache.cut_whole("synthetic-200x100", block))
    client = load_shard(cache.shards("synthetic-200x100", block, 0).paths[1])
    found = locate_client(whole, client)
    assert [whole.user_ids[row] for row in found.users] == list(client.user_ids)
    assert [whole.item_ids[row] for row in found.items] == list(client.item_ids)
    values = np.random.default_rng(0).normal(size=whole.train.shape).astype(np.float32)
    inside = values[np.ix_(found.users, found.items)]
    seen = sparse.csr_array(client.train + client.valid)
    rows: Rows = np.arange(len(client.user_ids))
    limited = found.restrict_lists(rank_by_scores(lambda asked: values[asked]), len(whole.item_ids))
    expected = rank_by_scores(lambda asked: inside[asked])(rows, seen, 20)
    assert np.array_equal(limited(rows, seen, 20), expected)


def test_published_files_are_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = {"train": hashlib.md5(b"0 1 2\n").hexdigest(), "test": hashlib.md5(b"0 3\n").hexdigest()}
    monkeypatch.setattr(checksums, "PUBLISHED", {"gowalla": sums, "yelp2018": {"train": "0" * 32}})
    (tmp_path / "gowalla").mkdir()
    with gzip.open(tmp_path / "gowalla" / "train.txt.gz", "wb") as file:
        file.write(b"0 1 2\n")
    (tmp_path / "gowalla" / "test.txt").write_bytes(b"0 4\n")
    assert [one.found for one in verify_data(tmp_path)] == ["as published", "another file", "not there"]
    assert main(["verify", str(tmp_path)]) == 1
    (tmp_path / "gowalla" / "train.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"train\.txt\.gz: expected a readable file"):
        verify_data(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected one of"),
        (["nobody"], "or --all, got 'nobody'"),
        (["table1", "--all"], "expected one of"),
        (["table1", "--only", "Nobody"], "expected rows among"),
        (["table1", "--jobs", "0"], "--jobs"),
        (["verify"], "expected the folder"),
    ],
)
def test_a_wrong_command_is_told(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_the_list_says_what_there_is_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = read_known(tmp_path)
    monkeypatch.setattr(command, "read_known", lambda _: nothing)
    arguments = ["table1", "--list", "--only", "LPSFed", "--data", str(tmp_path)]
    assert main(arguments) == 1
    assert "spectral: gowalla p0 s0 LPSFed: cannot be measured: data set 'gowalla'" in capsys.readouterr().out
    assert main(["table1", "--list", "--quick", "--cache", str(tmp_path)]) == 0
    assert "synthetic-400x240 p0 s0 LPSFed: to do" in capsys.readouterr().out
