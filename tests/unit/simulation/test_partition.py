"""Partitions: planted groups are found, sizes add up, the order of rows does not matter, bad requests are refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from client_service.data.interaction_files import load_shard
from shared.errors import DataError
from simulation.datasets.dataset import Dataset
from simulation.datasets.load import load_dataset
from simulation.datasets.synthetic import generate_dataset
from simulation.partitioning.methods import METHODS, Groups
from simulation.partitioning.partition import Partition, partition_dataset, write_partition

DATA = Path(os.environ.get("LPSFED_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))

# Two circles of friends: a, b, c share items 1-3, d, e share items 4-5; c once bought 4. Item 6 was only ever tested.
TRAIN = ["a1", "a2", "a3", "b1", "b2", "b3", "c2", "c3", "c4", "d4", "d5", "e4", "e5"]
TWO_CIRCLES = Dataset(
    "circles",
    pl.DataFrame(
        {
            "user": [pair[0] for pair in [*TRAIN, "c1", "d6", "e1"]],
            "item": [pair[1] for pair in [*TRAIN, "c1", "d6", "e1"]],
            "split": ["train"] * len(TRAIN) + ["valid", "test", "test"],
        }
    ),
    pl.DataFrame({"item": ["1", "2"], "title": ["One", "Two"]}),
)


def planted(sizes: list[tuple[int, int]], seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64], Dataset]:
    """Blocks of users and items, dense inside and sparse between; the block of each user and item."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(len(sizes)), [size[0] for size in sizes])
    items = np.repeat(np.arange(len(sizes)), [size[1] for size in sizes])
    chance = np.where(users[:, None] == items[None, :], 0.4, 0.01)
    rows, columns = np.nonzero(rng.random(chance.shape) < chance)
    table = pl.DataFrame({"user": [f"{row:03d}" for row in rows], "item": [f"{column:03d}" for column in columns]})
    return users, items, Dataset("planted", table.with_columns(split=pl.lit("train")), None)


def members(result: Partition) -> set[tuple[tuple[str, ...], tuple[str, ...]]]:
    return {(tuple(part.users), tuple(part.items)) for part in result.parts}


def test_two_circles_are_told_apart_and_the_edge_between_them_is_dropped() -> None:
    result = partition_dataset(TWO_CIRCLES, clients=2, method="spectral", seed=0)
    assert [(part.name, [*part.users], [*part.items]) for part in result.parts] == [
        ("client-1", ["a", "b", "c"], ["1", "2", "3"]),
        ("client-2", ["d", "e"], ["4", "5"]),
    ]
    assert result.edges_kept == 12 / 13
    first, second = (part.sizes for part in result.parts)
    assert (first.train, first.valid, first.test) == (8, 1, 0)
    assert (second.train, second.valid, second.test) == (4, 0, 0)
    assert result.notes == (
        "1 training interaction between clients: dropped",
        "2 test interactions with items that the client lacks: dropped",
        "1 item without a training interaction or a client dropped",
    )


@pytest.mark.parametrize("method", ["users", "interconnected"])
def test_where_users_alone_are_divided_every_edge_stays_and_items_live_twice(method: str) -> None:
    result = partition_dataset(TWO_CIRCLES, clients=2, method=method, seed=0)
    assert members(result) == {(("a", "b", "c"), ("1", "2", "3", "4")), (("d", "e"), ("4", "5"))}
    assert result.edges_kept == 1.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_blocks_of_different_size_are_found_by_both_variants(seed: int) -> None:
    users, items, dataset = planted([(300, 60), (60, 90), (40, 30), (90, 300)])
    result = partition_dataset(dataset, clients=4, method="spectral", seed=seed)
    expected = {
        (
            tuple(f"{row:03d}" for row in np.flatnonzero(users == block)),
            tuple(f"{column:03d}" for column in np.flatnonzero(items == block)),
        )
        for block in range(4)
    }
    assert members(result) == expected


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_repeatable_ignores_the_order_of_rows_and_counts_right(method: str) -> None:
    dataset = generate_dataset(3, users=400, items=300)
    shuffled = Dataset("other", dataset.events.sample(fraction=1.0, shuffle=True, seed=1), None)
    result = partition_dataset(dataset, clients=3, method=method, seed=4)
    again = partition_dataset(shuffled, clients=3, method=method, seed=4)
    assert members(result) == members(again) and result.edges_kept == again.edges_kept
    inside = [
        dataset.events.filter(pl.col("user").is_in([*part.users]) & pl.col("item").is_in([*part.items]))
        for part in result.parts
    ]
    assert [part.sizes.train for part in result.parts] == [len(t.filter(pl.col("split") == "train")) for t in inside]
    assert [part.sizes.test for part in result.parts] == [len(t.filter(pl.col("split") == "test")) for t in inside]
    total = len(dataset.events.filter(pl.col("split") == "train"))
    assert result.edges_kept == sum(part.sizes.train for part in result.parts) / total
    assert (result.edges_kept == 1.0) == (method not in ("spectral", "ego"))
    everybody = [user for part in result.parts for user in part.users]
    assert len(everybody) == len(set(everybody))
    sizes = [part.sizes.train for part in result.parts]
    assert sizes == sorted(sizes, reverse=True)


def test_a_seed_changes_random_and_ego_groups() -> None:
    dataset = generate_dataset(3, users=400, items=300)
    for method in ("random", "ego"):
        first, second = (partition_dataset(dataset, clients=3, method=method, seed=seed) for seed in (0, 1))
        assert members(first) != members(second)


def test_random_groups_are_of_equal_size() -> None:
    result = partition_dataset(generate_dataset(0, users=403, items=300), clients=4, method="random", seed=0)
    assert sorted(part.sizes.users for part in result.parts) == [100, 101, 101, 101]


def test_users_whom_no_ego_reaches_are_dropped_and_counted() -> None:
    lonely = pl.DataFrame({"user": ["x", "y", "y"], "item": ["8", "8", "9"], "split": ["train"] * 3})
    dataset = Dataset("islands", pl.concat([TWO_CIRCLES.events, lonely]), None)
    results = [partition_dataset(dataset, clients=1, method="ego", seed=seed) for seed in range(8)]
    assert {part.sizes.users for result in results for part in result.parts} == {2, 5}
    reached = next(result for result in results if result.parts[0].sizes.users == 5)
    assert "2 users without a training item inside a client dropped" in reached.notes


def test_users_left_without_an_item_by_the_cut_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # a and b belong to the first client, whose items are 1 and 2; of the second client's 3 and 4, e has only 4, and a
    # sixth user f, who has nothing but 1, is there too.
    lonely = pl.DataFrame({"user": ["f", "f"], "item": ["1", "4"], "split": ["train", "test"]})
    dataset = Dataset("circles", pl.concat([TWO_CIRCLES.events, lonely]), None)
    divided = Groups(np.array([0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, -1]))
    monkeypatch.setitem(METHODS, "random", lambda *_: divided)
    result = partition_dataset(dataset, clients=2, method="random", seed=0)
    assert members(result) == {(("a", "b"), ("1", "2")), (("c", "d", "e"), ("3", "4"))}
    assert result.edges_kept == 8 / 14
    assert "1 user without a training item inside a client dropped" in result.notes


def test_shards_are_written_and_read_back(tmp_path: Path) -> None:
    result = partition_dataset(TWO_CIRCLES, clients=2, method="spectral", seed=0)
    folders = write_partition(TWO_CIRCLES, result, tmp_path)
    assert folders == [tmp_path / "client-1", tmp_path / "client-2"]
    shard = load_shard(folders[0])
    assert (shard.name, shard.user_ids, shard.item_ids) == ("client-1", ("a", "b", "c"), ("1", "2", "3"))
    assert shard.titles == ("One", "Two", None)
    assert (shard.train.nnz, shard.valid.nnz, shard.test.nnz) == (8, 1, 0)
    assert shard.notes == ("one of 2 parts of circles: spectral, seed 0",)


def test_shards_of_an_earlier_partition_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    write_partition(TWO_CIRCLES, partition_dataset(TWO_CIRCLES, clients=2, method="spectral", seed=0), tmp_path)
    whole = partition_dataset(TWO_CIRCLES, clients=1, method="spectral", seed=0)
    with pytest.raises(DataError, match="1 new ones, got also client-2"):
        write_partition(TWO_CIRCLES, whole, tmp_path)


def test_ten_clients_and_more_have_names_that_sort(tmp_path: Path) -> None:
    dataset = generate_dataset(0, users=400, items=300)
    folders = write_partition(dataset, partition_dataset(dataset, clients=10, method="random", seed=0), tmp_path)
    assert [folder.name for folder in folders] == [f"client-{number:02d}" for number in range(1, 11)]


@pytest.mark.parametrize("method", METHODS)
def test_one_client_has_everything_with_a_training_item(method: str) -> None:
    result = partition_dataset(TWO_CIRCLES, clients=1, method=method, seed=0)
    assert members(result) == {(tuple("abcde"), tuple("12345"))}
    assert result.edges_kept == 1.0


@pytest.mark.parametrize(
    ("clients", "method", "message"),
    [
        (0, "spectral", "expected 1 to 2 clients for 5 users, got 0"),
        (-1, "random", "expected 1 to 2 clients for 5 users, got -1"),
        (3, "random", "expected 1 to 2 clients for 5 users, got 3"),
        (2, "alphabetical", "expected one of spectral, users, random, ego, interconnected, got 'alphabetical'"),
    ],
)
def test_impossible_requests_say_what_was_expected(clients: int, method: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition_dataset(TWO_CIRCLES, clients=clients, method=method, seed=0)


@pytest.mark.parametrize(
    ("users", "clients", "message"),
    [
        (1, 1, "expected 2 or more users with a training item, got 1 user"),
        (3, 2, "expected 1 client for 3 users, got 2"),
    ],
)
def test_a_few_users_are_refused_in_words_that_can_be_met(users: int, clients: int, message: str) -> None:
    pairs = [(f"u{user}", f"i{item}", "train") for user in range(users) for item in range(3)]
    few = Dataset("few", pl.DataFrame(pairs, schema=["user", "item", "split"], orient="row"), None)
    with pytest.raises(DataError, match=message):
        partition_dataset(few, clients=clients, method="users", seed=0)


def test_one_client_that_is_too_small_is_one_client() -> None:
    one = pl.DataFrame({"user": ["a", "b"], "item": ["x", "x"], "split": ["train", "train"]})
    with pytest.raises(DataError, match="2 items at the one client by 'users', got 2 users and 1 item;"):
        partition_dataset(Dataset("one", one, None), clients=1, method="users", seed=0)


def test_more_clients_than_eigenvectors_or_communities_are_refused() -> None:
    pairs = [(f"u{user}", f"i{item}") for user in range(8) for item in range(3)]
    full = pl.DataFrame(pairs, schema=["user", "item"], orient="row").with_columns(split=pl.lit("train"))
    with pytest.raises(DataError, match="at most 2 clients for 8 users and 3 items, got 4"):
        partition_dataset(Dataset("full", full, None), clients=4, method="spectral", seed=0)
    with pytest.raises(DataError, match="at least 2 users and 2 items at each of 2 clients by 'spectral', got"):
        partition_dataset(Dataset("full", full, None), clients=2, method="spectral", seed=0)


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "ml-1m").is_dir(), reason="real data not at hand")
def test_movielens_is_divided_as_measured_before() -> None:
    result = partition_dataset(load_dataset(DATA / "ml-1m", seed=0), clients=4, method="spectral", seed=0)
    sizes = [(part.sizes.users, part.sizes.items) for part in result.parts]
    assert sizes == [(1189, 1077), (1494, 639), (1409, 849), (1915, 478)]
    assert result.edges_kept == pytest.approx(0.4522, abs=1e-3)
    assert "15 users without a training item inside a client dropped" in result.notes


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "gowalla").is_dir(), reason="real data not at hand")
def test_gowalla_loses_little() -> None:
    dataset = load_dataset(DATA / "gowalla", seed=0)
    assert partition_dataset(dataset, clients=4, method="spectral", seed=0).edges_kept == pytest.approx(
        0.984, abs=0.005
    )
