"""The generated chain: shops that share most items, and lists of items that silos merge."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_service.data.interaction_files import load_shard
from shared.errors import DataError
from simulation.cli import app
from simulation.datasets.chain import ITEMS, MOST_SHOPS, USERS, generate_chain
from simulation.partitioning.sources import CHAIN, Cut, cut_shards


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
