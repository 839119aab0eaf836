"""The generated data set is repeatable, imbalanced as planted, and has a structure that a low-pass filter can learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from shared.errors import DataError
from shared.method.graph import Float64, degrees
from shared.method.spectrum import low_spectrum
from simulation.datasets.dataset import Dataset
from simulation.datasets.synthetic import COMMUNITIES, generate_dataset
from simulation.partitioning.partition import partition_dataset, write_partition


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return generate_dataset(0)


def recall(scores: Float64, shard: Shard) -> float:
    """Mean share of a user's test items among the 20 best scores outside the training items."""
    ranked = np.argsort(-np.where(shard.train.toarray() > 0, -np.inf, scores), axis=1)[:, :20]
    tested = shard.test.toarray()
    tested, ranked = tested[tested.any(axis=1)], ranked[tested.any(axis=1)]
    return float(np.mean(np.take_along_axis(tested, ranked, axis=1).sum(axis=1) / tested.sum(axis=1)))


def low_pass(shard: Shard) -> Float64:
    """r_u D_i^-1/2 V V^T D_i^1/2 with eight components."""
    items = low_spectrum(shard.train, 8).items
    root = np.sqrt(np.maximum(degrees(shard.train)[1], 1.0))[:, None]
    scores: Float64 = (shard.train @ (items / root)) @ (items * root).T
    return scores


def test_the_size_is_as_asked_and_every_user_is_there(dataset: Dataset) -> None:
    assert 50_000 < len(dataset.events) < 80_000
    assert dataset.events["user"].n_unique() == 2000
    assert 1150 <= dataset.events["item"].n_unique() <= 1200
    assert dataset.events["user"].min() == "user-00001"
    assert set(dataset.events["split"]) == {"train", "valid", "test"}


def test_the_seed_decides_everything(dataset: Dataset) -> None:
    again, other = generate_dataset(0), generate_dataset(1)
    assert dataset.titles is not None and again.titles is not None
    assert again.events.equals(dataset.events) and again.titles.equals(dataset.titles)
    assert not other.events.equals(dataset.events)


def test_every_item_has_a_title_that_names_its_genre(dataset: Dataset) -> None:
    assert dataset.titles is not None
    assert len(dataset.titles) == dataset.titles["item"].n_unique() == 1200
    assert dataset.titles["title"].str.contains(r"^The \w+ \w+ \(\d{4}, \w+\)$").all()


def test_few_items_have_most_interactions(dataset: Dataset) -> None:
    counts = dataset.events["item"].value_counts()["count"].sort(descending=True).to_list()
    assert sum(counts[:120]) > 0.3 * sum(counts)


def test_communities_are_found_and_in_each_a_filter_beats_popularity(dataset: Dataset, tmp_path: Path) -> None:
    result = partition_dataset(dataset, clients=len(COMMUNITIES), method="spectral", seed=0)
    shares = sorted((part.sizes.users / 2000 for part in result.parts), reverse=True)
    assert shares == pytest.approx([community.users for community in COMMUNITIES], abs=0.01)
    assert result.edges_kept > 0.8
    for folder in write_partition(dataset, result, tmp_path):
        shard = load_shard(folder)
        popularity = np.tile(degrees(shard.train)[1], (len(shard.user_ids), 1))
        assert recall(low_pass(shard), shard) > 1.25 * recall(popularity, shard)


def test_communities_differ_in_density(dataset: Dataset) -> None:
    parts = partition_dataset(dataset, clients=len(COMMUNITIES), method="spectral", seed=0).parts
    density = [part.sizes.train / part.sizes.users / part.sizes.items for part in parts]
    assert max(density) > 3 * min(density)


def test_a_smaller_data_set_keeps_the_promise_of_distinct_pairs() -> None:
    small = generate_dataset(5, users=60, items=50).events
    assert small["user"].n_unique() == 60
    assert len(small) == len(small.unique(["user", "item"]))
    assert small.filter(pl.col("split") == "train")["user"].n_unique() == 60


@pytest.mark.parametrize(("users", "items"), [(10, 1200), (2000, 0), (100_000, 100_000)])
def test_an_impossible_size_is_refused(users: int, items: int) -> None:
    with pytest.raises(DataError, match=f"got {users:,} users and {items:,} items"):
        generate_dataset(0, users=users, items=items)
