"""Forecast of the value of joining, compared with pooling the silos' users.

python -m benchmarks.worth.run SHARDS --silo 0 --silo 5

The truth is the closed-form start on the users of m silos, evaluated on the silo's users and items by test items.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy import sparse

from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.ranking import CHUNK, evaluate
from client_service.evaluation.ranking import TopItems as Top
from client_service.joining_value.comparison import choose_local, rank_by_choice
from client_service.joining_value.forecast import DRAWS, estimate_joining_value
from client_service.models.ranker import Rows
from shared.method.settings import method_settings
from shared.method.spectrum import low_spectrum
from simulation.partitioning.sources import find_shards

TIMES = (2, 4, 8, 16)


def pool(shards: Sequence[Shard]) -> Shard:
    """Joins shards: all users, the first shard's first, and all items, sorted by id."""
    items = sorted(set().union(*(shard.item_ids for shard in shards)))
    place = {item: number for number, item in enumerate(items)}
    stacked = [
        sparse.csr_array(
            sparse.vstack([_move_to_pool_columns(getattr(shard, split), shard, place) for shard in shards])
        )
        for split in ("train", "valid", "test")
    ]
    return build_shard_from_matrices("pool", [f"{number:09d}" for number in range(stacked[0].shape[0])], items, stacked)


def _move_to_pool_columns(pairs: sparse.csr_array, shard: Shard, place: dict[str, int]) -> sparse.csr_array:
    """Moves each item's pairs to its column in the pool, (users, items of the pool)."""
    columns = np.array([place[item] for item in shard.item_ids])
    coo = pairs.tocoo()
    return sparse.csr_array((coo.data, (coo.row, columns[coo.col])), shape=(pairs.shape[0], len(place)))


def rank_by_local_start(shard: Shard) -> Top:
    """Returns the lists of the shard's own closed-form start."""
    spectrum = low_spectrum(shard.train, method_settings().cutoff)
    return rank_by_choice(shard, spectrum, choose_local(shard, spectrum))


def quality(first: Shard, pooled: Shard, top: Top) -> float:
    """Measures the primary measure of the first shard's users on its own items."""
    known = set(first.item_ids)
    hidden = np.array([item not in known for item in pooled.item_ids])
    seen = sparse.csr_array(pooled.train + pooled.valid)

    def rank_own_items(users: Rows, without: sparse.csr_array, k: int) -> Rows:
        """Ranks items of the first shard alone."""
        also = sparse.csr_array(np.broadcast_to(hidden.astype(np.float64), (len(users), len(hidden))))
        return top(users, sparse.csr_array(without + also), k)

    assert CHUNK * len(hidden) < 1 << 28, "a block of users by items has to fit in memory"
    return evaluate(rank_own_items, pooled.test, seen, np.arange(first.train.shape[0])).primary_value


def main(
    folder: Annotated[Path, typer.Argument(help="folder of shards, as `lpsfed partition` writes it")],
    silo: Annotated[list[int], typer.Option(help="number of a silo, from 0; repeatable")],
    draws: int = DRAWS,
) -> None:
    """Prints a row of the table of docs/experiments.md for each silo and number of silos."""
    found = find_shards(folder)
    assert found is not None, "expected a folder of shards"
    shards = [load_shard(path) for path in found.paths]
    for number in silo:
        own = shards[number]
        others = [shard for shard in shards if shard is not own]
        alone = quality(own, pool([own]), rank_by_local_start(pool([own])))
        curve = estimate_joining_value(own, method_settings().cutoff, draws).curve
        assert curve is not None, "expected a silo that can be cut"
        for times in (times for times in TIMES if times <= len(shards)):
            outlook = next(one for one in curve.outlooks if one.times == times)
            low, middle, high = (
                1 + one / curve.today.value for one in (outlook.gain.low, outlook.gain.value, outlook.gain.high)
            )
            pooled = pool([own, *others[: times - 1]])
            truth = quality(own, pooled, rank_by_local_start(pooled)) / alone
            typer.echo(
                f"| {folder.name}, silo {number + 1} | {len(own.user_ids):,} | {times} "
                f"| {middle:.3f} ({low:.3f} to {high:.3f}) | {truth:.3f} |"
            )


if __name__ == "__main__":
    typer.run(main)
