"""A file of items beside the data: what nobody has met is kept by join and partition, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from shared.method.settings import BasisSettings, MethodSettings
from shared.protocol.signing.invitation import FederationOut
from simulation.datasets.dataset import Dataset
from simulation.datasets.load import load_dataset
from simulation.joining.consent import warn_missing_texts
from simulation.joining.join import SiloFolder
from simulation.joining.own_data import OWN_DATA, save_interactions
from simulation.partitioning.partition import partition_dataset, write_partition

UNMET = ("new", "other")


def write_files(folder: Path, *, described: bool = True) -> Path:
    rows = [(f"u{user:02}", f"i{(user + step) % 10}", 5 if step else 1) for user in range(20) for step in range(6)]
    rows.append(("u00", "disliked", 1))
    pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row").write_csv(folder / "shop.csv")
    ids = [*(f"i{item}" for item in range(10)), "disliked", *UNMET]
    if described:
        titles = [f"Title {one}" for one in ids]
        pl.DataFrame({"item": ids, "title": titles, "genre": ["drama"] * len(ids)}).write_csv(folder / "items.csv")
    return folder / "shop.csv"


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return load_dataset(write_files(tmp_path), 0, 4.0)


def unmet_of(shard: Shard) -> tuple[str, ...]:
    return () if shard.unmet is None else tuple(shard.unmet["item"])


def test_join_keeps_what_nobody_has_met_and_says_how_many(tmp_path: Path, dataset: Dataset) -> None:
    folder = SiloFolder(tmp_path / "shop")
    save_interactions(folder.shard, "shop", dataset)
    shard = load_shard(folder.shard)
    assert unmet_of(shard) == UNMET, "not what somebody has met and does not like"
    assert shard.unmet is not None and shard.unmet["genre"].to_list() == ["drama", "drama"]
    assert "10 items and 2 without interactions" in (OWN_DATA["items"].describe(folder.shard) or "")
    other = SiloFolder(tmp_path / "other")
    assert dataset.titles is not None
    save_interactions(other.shard, "shop", replace(dataset, titles=dataset.titles.filter(~pl.col("item").is_in(UNMET))))
    assert load_shard(other.shard).digest == shard.digest


def test_every_part_of_a_partition_keeps_unmet_items(tmp_path: Path, dataset: Dataset) -> None:
    folders = write_partition(
        dataset, partition_dataset(dataset, clients=2, method="random", seed=0), tmp_path / "parts"
    )
    shards = [load_shard(folder) for folder in folders]
    assert len(shards) == 2 and all(unmet_of(shard) == UNMET for shard in shards)


def test_a_silo_that_knows_nothing_of_its_items_is_told_before_it_joins(tmp_path: Path, dataset: Dataset) -> None:
    sums = MethodSettings(sums={"content": BasisSettings(kind="content")})
    federation = FederationOut(strategy="lpsfed", task="items", secure=True, method=sums)
    described, plain = SiloFolder(tmp_path / "described"), SiloFolder(tmp_path / "plain")
    save_interactions(described.shard, "described", dataset)
    save_interactions(plain.shard, "plain", replace(dataset, titles=None))
    assert warn_missing_texts(described.shard, federation) == ()
    (line,) = warn_missing_texts(plain.shard, federation)
    assert "it adds zeros to the sums of features" in line and "items.csv" in line
    assert warn_missing_texts(plain.shard, federation.model_copy(update={"method": MethodSettings()})) == ()
