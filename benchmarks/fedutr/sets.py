"""Reads data sets with one validation and one test item per user.

The users are divided into silos that have the same catalogue.
Shapes: M users, N items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from shared.method.graph import interaction_matrix
from simulation.datasets.dataset import Dataset
from simulation.datasets.load import load_dataset

NEGATIVES, AT = 99, 10
Int64 = NDArray[np.int64]
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class LeaveOneOut:
    """A data set with leave-one-out splits, divided into silos.

    whole: all users with all items of the set. silos: the rows of each silo's users in it. candidates: (M, 99) items
    without an interaction of the user, against which the short protocol ranks.
    """

    name: str
    whole: Shard
    silos: tuple[Int64, ...]
    candidates: Int64

    def make_shards(self) -> list[Shard]:
        """Makes the shard of each silo, with the whole catalogue."""
        return [select_users(self.whole, rows, f"silo-{number:04d}") for number, rows in enumerate(self.silos)]


def read_leave_one_out(path: Path, *, users: int, records: int, silos: int, seed: int) -> LeaveOneOut:
    """Reads the data set at `path` and splits it by leave-one-out.

    users, records: how many users are drawn, and how many of each user's last records are kept; 0: all.
    silos: their number; 0: one for each user.
    """
    return split_leave_one_out(load_dataset(path, seed), users=users, records=records, silos=silos, seed=seed)


def split_leave_one_out(found: Dataset, *, users: int, records: int, silos: int, seed: int) -> LeaveOneOut:
    """Takes each user's last item for the test and the one before for validation.

    Items are ordered by time where it is known, else at random.
    Users with fewer than three records are left out.
    """
    # Paper: says nothing of a validation item; here: the second last one.
    generator = np.random.default_rng(seed)
    drawn = pl.Series("drawn", generator.random(found.events.height))
    order = ["user", "time", "drawn"] if "time" in found.events.columns else ["user", "drawn"]
    events = found.events.with_columns(drawn).sort(order)
    back = pl.int_range(pl.len()).reverse().over("user")
    events = events.with_columns(back=back, records=pl.len().over("user")).filter(pl.col("records") >= 3)
    if records:
        events = events.filter(pl.col("back") < records)
    names = events["user"].unique().sort()
    if users:
        names = names.gather(np.sort(generator.permutation(len(names))[:users]))
        events = events.filter(pl.col("user").is_in(names.implode()))
    items = found.events["item"].unique().sort()
    rows, columns = names.search_sorted(events["user"]).to_numpy(), items.search_sorted(events["item"]).to_numpy()
    places = np.minimum(events["back"].to_numpy(), 2)
    shape = (len(names), len(items))
    matrices = [interaction_matrix(rows[places == back], columns[places == back], shape) for back in (2, 1, 0)]
    whole = build_shard_from_matrices("whole", list(names), list(items), matrices, places=np.arange(len(items)))
    groups = np.array_split(generator.permutation(len(names)), silos or len(names))
    with_text = add_item_text(whole, found.titles)
    return LeaveOneOut(found.name, with_text, tuple(np.sort(one) for one in groups), draw_candidates(whole, generator))


def add_item_text(shard: Shard, titles: pl.DataFrame | None) -> Shard:
    """Adds the titles and attributes of the items to a shard."""
    if titles is None:
        return shard
    table = pl.DataFrame({"item": shard.item_ids}).join(titles, on="item", how="left", maintain_order="left")
    features = table.drop("item", "title", strict=False)
    known = tuple(table["title"]) if "title" in table.columns else None
    return replace(shard, titles=known, features=features if features.width else None)


def select_users(shard: Shard, rows: Int64, name: str) -> Shard:
    """Selects some users of a shard, with all of its items."""
    matrices = [sparse.csr_array(getattr(shard, split)[rows]) for split in ("train", "valid", "test")]
    ids = [shard.user_ids[row] for row in rows]
    found = build_shard_from_matrices(name, ids, shard.item_ids, matrices, places=shard.places)
    return replace(found, titles=shard.titles, features=shard.features, catalogue=shard.catalogue)


def draw_candidates(shard: Shard, generator: np.random.Generator) -> Int64:
    """Draws 99 items for each user without an interaction with them, (M, 99)."""
    keys = generator.random(shard.train.shape)
    keys[shard.known_pairs.nonzero()] = np.inf
    return np.argpartition(keys, NEGATIVES, axis=1)[:, :NEGATIVES].astype(np.int64)


def judge_scores(found: LeaveOneOut, scores: Scores, split: str) -> dict[str, float]:
    """Measures the HR@10 and NDCG@10 of each user's item of `split`.

    It is ranked among all items that the user has not interacted with, and among 99 of them. scores: (M, N).
    """
    ranks = rank_targets(found, scores, split)
    return {name: value for side, rank in ranks.items() for name, value in measure_ranks(rank, side).items()}


def rank_targets(
    found: LeaveOneOut, scores: Scores, split: str, users: Int64 | None = None
) -> dict[str, NDArray[np.float64]]:
    """Ranks each user's item of `split` among all items and among 99 others, (U,).

    The ranks are named "all" and "99"; the user has interacted with none of the other items. scores: (U, N) of these
    users, by default of all. An item of the same score counts as half ahead, so that equal scores win nothing.
    """
    shard = found.whole
    rows = np.arange(len(shard.user_ids)) if users is None else users
    target = getattr(shard, split).indices.astype(np.int64)[rows]
    own = scores[np.arange(len(rows)), target][:, None]
    met = np.zeros(scores.shape, dtype=bool)
    met[shard.train[rows].nonzero()] = True
    met[(shard.valid if split == "test" else shard.test)[rows].nonzero()] = True
    ahead = (scores > own) + 0.5 * (scores == own)
    ahead[met] = 0.0
    return {"all": ahead.sum(1) + 0.5, "99": np.take_along_axis(ahead, found.candidates[rows], 1).sum(1) + 1.0}


def measure_ranks(ranks: NDArray[np.float64], side: str) -> Mapping[str, float]:
    """Computes the mean HR@10 and NDCG@10 of single targets.

    Rank 3 gives 1 and 1 / 2, rank 11 gives 0 and 0.
    """
    gains = np.where(ranks <= AT, 1.0 / np.log2(ranks + 1.0), 0.0)
    return {f"hr10_{side}": float((ranks <= AT).mean()), f"ndcg10_{side}": float(gains.mean())}
