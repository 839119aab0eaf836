"""Stray parts of a spectral cut: no handful of users becomes a client, and where there is none nothing changes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from shared.errors import DataError
from simulation.datasets.dataset import Dataset
from simulation.datasets.load import load_dataset
from simulation.partitioning.methods import METHODS, joint_labels, least_users, user_labels
from simulation.partitioning.partition import partition_dataset

DATA = Path(os.environ.get("LPSFED_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
CUTS = ("spectral", "users", "interconnected")


def blocks(sizes: list[tuple[int, int]], *, between: float, seed: int = 0) -> sparse.csr_array:
    """Dense blocks of users x items, with a chance of an edge between nodes of the first two blocks."""
    rng = np.random.default_rng(seed)
    users, items = (np.repeat(np.arange(len(sizes)), [size[side] for size in sizes]) for side in (0, 1))
    chance = np.where(users[:, None] == items, 0.4, np.where((users[:, None] < 2) & (items < 2), between, 0.0))
    return sparse.csr_array((rng.random(chance.shape) < chance).astype(float))


def dataset_of(graph: sparse.csr_array) -> Dataset:
    rows, columns = graph.nonzero()
    pairs = pl.DataFrame({"user": [f"{row:04d}" for row in rows], "item": [f"{column:04d}" for column in columns]})
    return Dataset("planted", pairs.with_columns(split=pl.lit("train")), None)


TWO_BLOCKS = [(200, 80), (150, 60)]


@pytest.mark.parametrize("method", CUTS)
def test_components_apart_join_the_largest_client_and_the_rest_is_divided(method: str) -> None:
    graph = blocks([*TWO_BLOCKS, (6, 9), (8, 6), (4, 5)], between=0.02)
    result = partition_dataset(dataset_of(graph), clients=2, method=method, seed=0)
    assert [part.sizes.users for part in result.parts] == [218, 150]
    assert "18 users of small components apart from all others put into the largest client" in result.notes


@pytest.mark.parametrize("method", CUTS)
def test_a_knot_that_hangs_by_two_edges_is_no_client(method: str) -> None:
    graph = blocks([*TWO_BLOCKS, (8, 30)], between=0.04).tolil()
    graph[0, 145] = graph[1, 150] = 1.0  # two users of the first block know an item of the knot
    groups = METHODS[method](sparse.csr_array(graph), 2, 0)
    assert set(groups.users[:200]) | set(groups.users[350:]) == {groups.users[0]}
    assert set(groups.users[200:350]) == {1 - groups.users[0]}
    assert any("degrees raised by" in note for note in groups.notes)


def test_where_no_part_is_stray_the_cut_is_the_plain_one() -> None:
    graph = blocks(TWO_BLOCKS, between=0.05)
    joint, alone = METHODS["spectral"](graph, 2, 0), METHODS["users"](graph, 2, 0)
    assert same_parts(joint.users, joint_labels(graph, 2, 0)[0]) and same_parts(alone.users, user_labels(graph, 2, 0))
    assert joint.notes == alone.notes == ()


def same_parts(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two labellings differ in the numbers of the parts at most."""
    return len({*zip(one.tolist(), other.tolist(), strict=True)}) == len({*one.tolist()}) == len({*other.tolist()})


@pytest.mark.parametrize("method", CUTS)
@pytest.mark.parametrize("clients", [2, 4, 8])
def test_a_sparse_graph_gives_as_many_clients_as_asked_for(clients: int, method: str) -> None:
    rng = np.random.default_rng(3)
    rows = np.repeat(np.arange(1500), rng.integers(1, 6, 1500))
    columns = (rng.random(len(rows)) ** 2 * 1400).astype(int)
    graph = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(1500, 1400))
    result = partition_dataset(dataset_of(graph), clients=clients, method=method, seed=0)
    assert len(result.parts) == clients
    assert min(part.sizes.users for part in result.parts) >= least_users(1500, clients)


def test_what_a_client_must_have_follows_from_the_data_s_size() -> None:
    assert [least_users(*size) for size in ((8072, 4), (943, 4), (943, 64), (5, 2))] == [50, 23, 2, 2]


def test_too_few_large_parts_are_refused_with_the_number_of_users_that_is_missing() -> None:
    dense = blocks([(60, 4)], between=0.0)
    with pytest.raises(DataError, match=r"at least 2 users and 2 items at each of 3 clients by 'spectral', got"):
        partition_dataset(dataset_of(sparse.csr_array(np.ones(dense.shape))), clients=3, method="spectral", seed=0)


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "amazon-video").is_dir(), reason="real data not at hand")
def test_sparse_reviews_are_divided_into_clients_of_hundreds() -> None:
    """The plain cut gives 8,030, 26, 13 and 3 users: the graph has 54 components and many knots."""
    result = partition_dataset(load_dataset(DATA / "amazon-video", seed=0), clients=4, method="spectral", seed=0)
    assert min(part.sizes.users for part in result.parts) > 800
