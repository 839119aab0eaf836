"""The generated chain: shops that share most items, and lists of items that silos merge."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from client_service.data.interaction_files import load_shard
from client_service.models.closed_form.content import (
    ContentSums,
    add_constant,
    find_item_features,
    predicts_taste,
    sum_content,
)
from client_service.models.closed_form.scorer_part import TrainingGraph
from client_service.training.spectrum_cache import cached_spectrum
from shared.errors import DataError
from shared.method.parameters import Float32
from simulation.cli import app
from simulation.datasets.chain import ITEMS, LONE_USERS, MOST_SHOPS, USERS, generate_chain
from simulation.experiments.tasks import ItemTask
from simulation.partitioning.sources import CHAIN, SHOPS, Cut, cut_shards


def test_the_seed_and_the_number_of_shops_decide_everything() -> None:
    chain, again, other = generate_chain(0, 4), generate_chain(0, 4), generate_chain(1, 4)
    assert chain.dataset.events.equals(again.dataset.events) and chain.shops.equals(again.shops)
    assert not chain.dataset.events.equals(other.dataset.events)
    assert chain.dataset.titles is not None and len(chain.dataset.titles) == ITEMS
    with pytest.raises(DataError, match=f"expected 1 to {MOST_SHOPS} shops, got 51"):
        generate_chain(0, MOST_SHOPS + 1)


def test_every_customer_has_one_shop_and_two_shops_share_most_items(tmp_path: Path) -> None:
    shards = cut_shards(CHAIN, Cut(4), tmp_path)
    assert shards.summary["method"] == "shops" and shards.edges_kept == 1.0
    read = [load_shard(path) for path in shards.paths]
    users, items = [set(shard.user_ids) for shard in read], [set(shard.item_ids) for shard in read]
    assert sum(map(len, users)) == len(set.union(*users)) == USERS and len(users[0]) == 2 * len(users[1])
    assert all(len(items[0] & other) > 0.8 * len(other) for other in items[1:])


def test_the_last_of_four_shops_sells_nothing_that_the_others_sell_and_all_list_new_items(tmp_path: Path) -> None:
    paths = cut_shards(SHOPS, Cut(4), tmp_path).paths
    read = [load_shard(path) for path in paths]
    items = [set(shard.item_ids) for shard in read]
    assert ItemTask().find_lone_shards(paths) == {"client-4"} and len(read[3].user_ids) == LONE_USERS
    assert not items[3] & (items[0] | items[1] | items[2]) and len(items[0] & items[1]) > 0.8 * len(items[1])
    sold = set(generate_chain(0, 4, lone=True).dataset.events["item"])
    news = [set() if shard.unmet is None else set(shard.unmet["item"]) for shard in read]
    assert not any(new & sold for new in news) and not news[3] & (news[0] | news[1] | news[2])
    assert all(0.05 * len(listed) < len(new) < 0.2 * len(listed) for new, listed in zip(news, items, strict=True))


def test_fewer_than_four_shops_are_those_of_the_chain(tmp_path: Path) -> None:
    chain, shops = (cut_shards(data, Cut(3), tmp_path / data).paths for data in (CHAIN, SHOPS))
    assert [load_shard(path).digest for path in chain] == [load_shard(path).digest for path in shops]


def test_titles_and_categories_tell_what_customers_of_each_shop_like(tmp_path: Path) -> None:
    """The lone shop has too few customers to see it alone; titles of other items tell nothing of it, but for chance."""
    graphs = []
    for path in cut_shards(SHOPS, Cut(4), tmp_path).paths:
        shard = load_shard(path)
        features = find_item_features(shard)
        assert features is not None
        graphs.append(TrainingGraph(shard.train, cached_spectrum(shard, 16, None), features.values))
    misled, sums = 0, [sum_content(one.interactions, add_constant(told(one))) for one in graphs]
    for graph, own in zip(graphs, sums, strict=True):
        others = reduce(ContentSums.add, (one for one in sums if one is not own))
        assert predicts_taste(replace(graph, others=others))
        for seed in range(3):
            shuffled = np.random.default_rng(seed).permutation(told(graph))
            misled += predicts_taste(replace(graph, features=shuffled, others=others))
    assert misled <= 1


def told(graph: TrainingGraph) -> Float32:
    assert graph.features is not None
    return graph.features


def test_lists_are_merged_into_one_that_holds_every_item_of_each_shard(tmp_path: Path) -> None:
    shards = cut_shards(CHAIN, Cut(3), tmp_path / "shards").paths
    own, merged, size = tmp_path / "client-1.items", tmp_path / "catalogue.txt", tmp_path / "size"
    run = CliRunner().invoke
    assert run(app, ["catalogue", str(shards[0]), "--out", str(own)]).exit_code == 0
    sources = [str(own), *map(str, shards[1:])]
    assert run(app, ["catalogue", *sources, "--out", str(merged), "--size-file", str(size)]).exit_code == 0
    listed = merged.read_text().splitlines()
    assert listed == sorted(set(listed)) and int(size.read_text()) == len(listed)
    assert all(set(load_shard(path).item_ids) <= set(listed) for path in shards)
    empty = tmp_path / "empty"
    empty.touch()
    refused = run(app, ["catalogue", str(empty), "--out", str(merged)])
    assert isinstance(refused.exception, DataError) and "got none" in str(refused.exception)
