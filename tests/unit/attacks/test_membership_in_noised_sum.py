"""A user who is there or not must change a noised sum by nothing but what is his.

Who: whoever sees the sum and knows everything but whether one user is in it. `basis.epsilon` hides a change of norm 1.
Splits were drawn from one stream over all users, so that one user moved everybody behind: the change had norm 7 here,
and the attacker was right 99 times of 100 at epsilon 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from client_service.data.interaction_files import load_shard, with_places
from client_service.data.interactions import Shard
from client_service.privacy.basis_guard import noise_deviation
from client_service.sums.statistics import catalogue_matrix, weigh_pairs
from shared.sums.item_basis import WEIGHTED, entry_deviations
from shared.sums.sum import STEP
from simulation.datasets.load import load_dataset
from simulation.joining.join import SiloFolder
from simulation.joining.own_data import save_interactions

USERS, ITEMS = 60, 40
VICTIM = "u00"  # before all others in the file and in the order of ids
KINDS = (None, "random", "time", "leave-one-out")
Rows = list[tuple[str, str, int | str, int]]


def interactions() -> Rows:
    """Of users with 2 to 16 items. An item of the victim's has one other user; a user has no time in some rows."""
    rng = np.random.default_rng(0)
    rows: Rows = []
    for user in range(USERS):
        for item in rng.choice(ITEMS - 2, size=rng.integers(2, 17), replace=False):
            time: int | str = "" if user == 7 and item % 2 else int(rng.integers(0, 50)) + 1_600_000_000
            rows.append((f"u{user:02d}", f"i{item:02d}", time, int(rng.integers(4, 6))))
    return [*rows, (VICTIM, "i39", 1_600_000_001, 5), ("u31", "i39", 1_600_000_099, 5)]


def joined(folder: Path, rows: Rows, kind: Any) -> Shard:
    """The shard that `lpsfed join` makes of a file with these rows, with places in the common catalogue."""
    folder.mkdir()
    lines = (",".join(map(str, row)) for row in rows)
    path = folder / "ratings.csv"
    path.write_text("\n".join(["user,item,time,rating", *lines]) + "\n", encoding="utf-8")
    silo = SiloFolder(folder / "silo")
    save_interactions(silo.shard, "silo", load_dataset(path, 0, "usual", kind))
    listed = folder / "catalogue.txt"
    listed.write_text("\n".join(f"i{item:02d}" for item in range(ITEMS)), encoding="utf-8")
    return with_places(load_shard(silo.shard), listed, ITEMS, partly=True)


def splits(shard: Shard) -> dict[tuple[str, str], str]:
    return {(user, item): split for user, item, split in shard.events_with_ids()["user", "item", "split"].iter_rows()}


def both(tmp_path: Path, kind: Any, without: str = VICTIM) -> tuple[Shard, Shard]:
    rows = [row for row in interactions() if kind != "time" or row[2] != ""]
    return (
        joined(tmp_path / "with", rows, kind),
        joined(tmp_path / "without", [row for row in rows if row[0] != without], kind),
    )


def change(one: Shard, other: Shard) -> np.ndarray:
    """Of what leaves a silo, as a matrix (N, N) with its diagonal."""
    sums = [weigh_pairs(catalogue_matrix(shard, ITEMS))[WEIGHTED].astype(float) * STEP for shard in (one, other)]
    matrix = np.zeros((ITEMS, ITEMS))
    matrix[np.triu_indices(ITEMS)] = sums[0] - sums[1]
    return matrix + np.triu(matrix, k=1).T


@pytest.mark.parametrize("without", [VICTIM, "u31", "u07", "u59"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_user_less_changes_no_pair_of_the_others(tmp_path: Path, kind: Any, without: str) -> None:
    one, other = both(tmp_path, kind, without)
    mine = {pair: split for pair, split in splits(one).items() if pair[0] == without}
    assert mine and splits(one) == {**splits(other), **mine}


@pytest.mark.parametrize("without", [VICTIM, "u31", "u07", "u59"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_user_less_changes_a_sum_by_his_own_part_of_norm_one(tmp_path: Path, kind: Any, without: str) -> None:
    one, other = both(tmp_path, kind, without)
    row = one.user_row(without)
    assert row is not None
    own = weigh_pairs(sparse.csr_array(catalogue_matrix(one, ITEMS)[[row]]))[WEIGHTED].astype(float) * STEP
    moved = change(one, other)
    np.testing.assert_allclose(moved[np.triu_indices(ITEMS)], own, atol=1e-12)
    assert 0.5 < np.linalg.norm(moved) <= 1.0  # what `basis.epsilon` hides


def test_who_knows_everybody_else_is_hardly_right_more_often_than_by_guessing(tmp_path: Path) -> None:
    """The likelihood ratio of the sum with and without the victim, at epsilon 1: right 55 times of 100, not 99."""
    one, other = both(tmp_path, None)
    moved = change(one, other)[np.triu_indices(ITEMS)]
    deviations = entry_deviations(moved.size, noise_deviation(1.0, 1e-5))
    rng, right = np.random.default_rng(0), 0
    for number in range(2000):
        there = number % 2 == 0
        seen = (moved if there else 0.0) + rng.normal(size=moved.size) * deviations
        right += (((seen - moved / 2) * moved / deviations**2).sum() > 0) == there
    assert right / 2000 < 0.6
