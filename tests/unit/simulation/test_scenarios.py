"""Scenarios: each divides as its title says, keeps every split, and is the same for the same seed."""

from __future__ import annotations

from itertools import combinations, pairwise

import polars as pl
import pytest

from shared.errors import DataError, SettingsError
from simulation.datasets.dataset import Dataset
from simulation.datasets.synthetic import generate_dataset
from simulation.partitioning.partition import Partition, build_part
from simulation.partitioning.scenarios import COMMON_SHARE, LARGE_SHARE, OWN_IDS, SCENARIOS, divide_by_scenario

SILOS = 4
WHOLE = generate_dataset(3)
TITLED = Dataset(
    "titled",
    WHOLE.events,
    WHOLE.events.select("item").unique().with_columns(title=pl.format("title {}", "item")),
    met=WHOLE.events.head(40).drop("split").with_columns(item=pl.format("seen-{}", "item")),
)


def divide(name: str, seed: int = 1, dataset: Dataset = WHOLE) -> tuple[Dataset, Partition]:
    return divide_by_scenario(dataset, name, SILOS, seed)


def users_of(partition: Partition) -> list[set[str]]:
    return [set(part.users) for part in partition.parts]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_user_is_in_one_silo_and_the_same_seed_divides_alike(name: str) -> None:
    dataset, partition = divide(name)
    assert len(partition.parts) == SILOS and partition.method == name
    assert sum(len(users) for users in users_of(partition)) == dataset.events["user"].n_unique()
    assert not any(first & second for first, second in pairwise(users_of(partition)))
    assert users_of(partition) == users_of(divide(name)[1])
    if name != "taste":  # which follows from the data
        assert users_of(partition) != users_of(divide(name, seed=2)[1])
    assert SCENARIOS[name].title in partition.notes


@pytest.mark.parametrize("name", ["disjoint", "disjoint-genres"])
def test_shops_have_no_item_and_no_user_in_common_and_nobody_has_the_cold_ones(name: str) -> None:
    dataset, partition = divide_by_scenario(WHOLE, name, SILOS, 1, small=30)
    parts = partition.parts
    assert not any(set(one.items) & set(two.items) for one, two in combinations(parts, 2))
    small = min(parts, key=lambda part: part.sizes.users)
    assert 20 <= small.sizes.users <= 30 and sorted(part.sizes.users for part in parts)[1] > 300
    hidden = partition.hidden
    assert hidden is not None
    cold = set(hidden.filter(pl.col("cold"))["item"])
    assert cold and not cold & set(dataset.events["item"])
    visitors = set(hidden["user"]) - set().union(*users_of(partition))
    assert len(visitors) > 200 and not visitors & set(dataset.events["user"])
    judged = hidden.filter(pl.col("user").is_in(list(visitors)))
    assert not any(set(judged["item"]) & set(part.items) for part in parts if part is not small)
    shard = build_part(dataset, small, small.name, ())
    listed = [row for row, item in enumerate(shard.item_ids) if item in cold]
    assert listed and not shard.known_pairs[:, listed].nnz
    if name == "disjoint-genres":
        assert WHOLE.titles is not None
        genre = dict(WHOLE.titles.select("item", "category").iter_rows())
        kinds = [{genre[item] for item in part.items} for part in parts]
        assert not any(one & two for one, two in combinations(kinds, 2))


def test_a_small_shop_is_refused_where_there_is_none_or_it_is_not_small() -> None:
    with pytest.raises(SettingsError, match=r"--small: expected it with --scenario disjoint"):
        divide_by_scenario(WHOLE, "chain", SILOS, 0, small=10)
    with pytest.raises(DataError, match=r"expected .* a small one of 2 users or more, less than each other"):
        divide_by_scenario(WHOLE, "disjoint", SILOS, 0, small=900)
    with pytest.raises(DataError, match=r"disjoint-genres: expected items with one of genres"):
        divide_by_scenario(TITLED, "disjoint-genres", SILOS, 0)


@pytest.mark.parametrize("name", ["chain", "big-and-tiny", "taste"])
def test_nothing_but_the_users_is_divided(name: str) -> None:
    dataset, partition = divide(name)
    assert dataset is WHOLE
    assert sum(part.sizes.train for part in partition.parts) == len(WHOLE.events.filter(pl.col("split") == "train"))


def test_one_silo_has_most_users_and_the_others_are_equal() -> None:
    sizes = sorted((part.sizes.users for part in divide("big-and-tiny")[1].parts), reverse=True)
    assert sizes[0] == round(LARGE_SHARE * sum(sizes))
    assert max(sizes[1:]) - min(sizes[1:]) <= 1


def test_a_region_alone_sells_what_not_all_sell() -> None:
    dataset, partition = divide("regional")
    sold = [set(part.items) for part in partition.parts]
    every, counts = set().union(*sold), [sum(item in items for items in sold) for item in set().union(*sold)]
    assert any(count > 1 for count in counts)
    alone = sum(count == 1 for count in counts) / len(every)
    assert 0.2 < alone < 0.7  # 40 % of the catalogue, and common items of which one silo alone has sold any
    assert len(dataset.events) < len(WHOLE.events)
    trained = dataset.events.filter(pl.col("split") == "train")["user"]
    assert set(dataset.events["user"]) == set(trained)
    assert 0.5 < COMMON_SHARE < 0.7


def test_ids_differ_for_a_share_of_the_items_and_stand_for_the_same_events() -> None:
    dataset, partition = divide("ids-differ", dataset=TITLED)
    assert len(dataset.events) == len(TITLED.events)
    assert dataset.events.sort("user", "item").equals(dataset.events)
    own = dataset.events.filter(pl.col("item").str.starts_with("own-"))
    assert abs(len(own) / len(dataset.events) - OWN_IDS) < 0.1
    back = own.with_columns(item=pl.col("item").str.replace(r"^own-\d+-", ""))
    kept = pl.concat([dataset.events.filter(~pl.col("item").str.starts_with("own-")), back]).sort("user", "item")
    assert kept.select("user", "item", "split").equals(TITLED.events.select("user", "item", "split"))
    foreign = {item for part in partition.parts for item in part.items if item.startswith("own-")}
    for first, second in pairwise(partition.parts):
        assert not foreign & set(first.items) & set(second.items)
    assert dataset.titles is not None and dataset.met is not None and TITLED.met is not None
    assert len(dataset.met) == len(TITLED.met)
    shard = build_part(dataset, partition.parts[0], "one", ())
    assert shard.titles is not None and all(title is not None for title in shard.titles)


def test_an_unknown_scenario_and_too_many_silos_are_refused() -> None:
    with pytest.raises(DataError, match=r"scenario: expected one of chain, big-and-tiny, .*, got 'island'"):
        divide_by_scenario(WHOLE, "island", SILOS, 0)
    with pytest.raises(DataError, match="partition: expected 1 to"):
        divide_by_scenario(WHOLE, "chain", 100_000, 0)
