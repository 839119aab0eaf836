"""Population from a data set, from which shards are drawn with and without each target.

Shapes: M users of the population, N items, H hosts, I items that may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.events import SPLITS, row_numbers
from client_service.data.interactions import Shard, build_shard_from_matrices
from shared.errors import DataError
from shared.method.graph import Float64, interaction_matrix
from simulation.datasets.load import load_dataset
from simulation.datasets.synthetic import generate_dataset
from simulation.partitioning.sources import SYNTHETIC

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]
FEWEST = 8  # training items of a user: one with fewer is hardly there
CHANCE = 0.5  # of each target: guessing is right half of the time
MOST_ITEMS = 1 << 20  # more than any data set has
TASTE = 1.5  # effect of a silo's taste on its background users


@dataclass(frozen=True, eq=False)
class Population:
    """All possible users of a silo, with all their interactions."""

    splits: dict[str, sparse.csr_array]
    hosts: Int64
    pairs: Int64
    coins: Int64
    background: Int64
    rare: Int64
    taste: Float64

    @property
    def train(self) -> sparse.csr_array:
        """Training interactions, (M, N) 0/1."""
        return self.splits["train"]


@dataclass(frozen=True, eq=False)
class Draw:
    """Users (M,), target pairs of hosts (H,) and rare items (I,) of one shard."""

    users: Bool
    pairs: Bool
    rare: Bool


@dataclass(frozen=True, eq=False)
class DrawnShard:
    """A shard with the population's rows of its users (m,) and items (n,)."""

    shard: Shard
    users: Int64
    items: Int64 = field(repr=False)

    def training_graph(self, shape: tuple[int, int]) -> sparse.csr_array:
        """Returns the training graph in the population's rows, (M, N)."""
        pairs = self.shard.train.tocoo()
        return interaction_matrix(self.users[pairs.row], self.items[pairs.col], shape)


def draw_populations(data: str, config: dict[str, Any]) -> tuple[Population, Population]:
    """Draws the attacked silo's population and another for the other silos, with the same items."""
    splits = _popular_matrices(data, config["items"])
    active = np.flatnonzero(np.diff(splits["train"].indptr) >= FEWEST).astype(np.int64)
    order = np.random.default_rng(config["seed"]).permutation(active)
    if len(order) < 2 * config["users"]:
        raise DataError(f"attacks: expected {2 * config['users']} users with {FEWEST} training items, got {len(order)}")
    own, other = order[: config["users"]], order[config["users"] :][: config["users"]]
    return _draw_population(splits, np.sort(own), config), _draw_population(splits, np.sort(other), config)


def all_matrices(data: str) -> dict[str, sparse.csr_array]:
    """Reads the interactions of a data set: train, valid, test, each (M, N) 0/1."""
    return _popular_matrices(data, MOST_ITEMS)


def _popular_matrices(data: str, items: int) -> dict[str, sparse.csr_array]:
    """Reads the interactions with the most popular items."""
    table = (generate_dataset(0) if data == SYNTHETIC else load_dataset(Path(data), 0, draws="table")).events
    popular = table.group_by("item").len().sort(["len", "item"], descending=[True, False])["item"].head(items).sort()
    users, kept = table["user"].unique().sort(), table.filter(pl.col("item").is_in(popular.implode()))
    rows, columns = row_numbers(kept["user"], users), row_numbers(kept["item"], popular)
    masks = {split: (kept["split"] == split).to_numpy() for split in SPLITS}
    return {split: interaction_matrix(rows[m], columns[m], (len(users), len(popular))) for split, m in masks.items()}


def _draw_population(splits: dict[str, sparse.csr_array], users: Int64, config: dict[str, Any]) -> Population:
    """Draws hosts, coins and rare items among the population's users."""
    rng = np.random.default_rng([config["seed"], 1])
    own = {split: sparse.csr_array(pairs[users]) for split, pairs in splits.items()}
    roles = rng.permutation(len(users))
    hosts, coins, background = np.split(roles, [config["hosts"], config["hosts"] + config["coins"]])
    rare = _draw_middling_items(own["train"], config["rare"], rng)
    pairs = np.array([_draw_item(own["train"], int(host), rare, rng) for host in hosts], dtype=np.int64)
    return Population(own, hosts, pairs, coins, background, rare, _taste_scores(own["train"]))


def _draw_middling_items(train: sparse.csr_array, count: int, rng: np.random.Generator) -> Int64:
    """Draws items outside the most and the least popular quarter."""
    order = np.argsort(train.sum(axis=0), kind="stable")
    quarter = len(order) // 4
    return np.sort(rng.choice(order[quarter:-quarter], count, replace=False)).astype(np.int64)


def _draw_item(train: sparse.csr_array, user: int, rare: Int64, rng: np.random.Generator) -> int:
    own = train.indices[train.indptr[user] : train.indptr[user + 1]]
    return int(rng.choice(np.setdiff1d(own, rare)))


def _taste_scores(train: sparse.csr_array) -> Float64:
    """Computes each user's standardised place on the main axis of taste, (M,).

    The axis divides users most once popularity is removed.
    """
    dense = train.toarray()
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    left = np.linalg.svd(dense - dense.mean(axis=0), full_matrices=False)[0][:, 0]
    scaled: Float64 = (left - left.mean()) / left.std()
    return scaled


def draw_targets(population: Population, rng: np.random.Generator) -> Draw:
    """Draws each target by a fair coin; background users follow the silo's taste."""
    users = np.ones(population.train.shape[0], dtype=bool)
    users[population.coins] = rng.random(len(population.coins)) < CHANCE
    lean = TASTE * rng.normal() * population.taste[population.background]
    users[population.background] = rng.random(len(lean)) < 1.0 / (1.0 + np.exp(-lean))
    pairs, rare = (rng.random(len(targets)) < CHANCE for targets in (population.hosts, population.rare))
    return Draw(users, pairs, rare)


def make_shard(population: Population, draw: Draw) -> DrawnShard:
    """Makes the silo's shard as the client reads it.

    It has the users with a training item and the items that occur.
    """
    kept = {split: _thin_pairs(pairs, population, draw, split) for split, pairs in population.splits.items()}
    users = np.flatnonzero(np.diff(kept["train"].indptr)).astype(np.int64)
    own = {split: sparse.csr_array(pairs[users]) for split, pairs in kept.items()}
    items = np.flatnonzero(sum(pairs.sum(axis=0) for pairs in own.values())).astype(np.int64)
    splits = {split: _canonical_matrix(pairs[:, items]) for split, pairs in own.items()}
    ids = [[f"{row:06d}" for row in rows] for rows in (users, items)]
    shard = build_shard_from_matrices("client-1", ids[0], ids[1], [splits[split] for split in SPLITS], places=items)
    return DrawnShard(shard, users, items)


def _thin_pairs(pairs: sparse.csr_array, population: Population, draw: Draw, split: str) -> sparse.csr_array:
    """Removes users, items and training pairs that are not in the draw."""
    kept = pairs.tolil() if split == "train" else pairs.copy().tolil()
    if split == "train":
        out = ~draw.pairs
        kept[population.hosts[out], population.pairs[out]] = 0.0
    items = np.ones(pairs.shape[1])
    items[population.rare[~draw.rare]] = 0.0
    thinned = sparse.diags_array(draw.users.astype(np.float64)) @ kept.tocsr() @ sparse.diags_array(items)
    return _canonical_matrix(thinned)


def _canonical_matrix(pairs: Any) -> sparse.csr_array:
    """Removes stored zeros and sorts, as in a shard's matrices."""
    matrix = sparse.csr_array(pairs)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix
