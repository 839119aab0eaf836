"""Gain of exact and iterated sums for the silos of a sparse data set.

A user's NDCG@20 on test items: `alone`, the fused start of the silo's own data; `listed`, fused with the sums, whose
own share counts every item on the list; `told`, as the services do it, where it counts only items about which the
sums have data of other silos. A ratio has the 95 % bootstrap interval over users; a silo is behind where its whole
interval lies below 1. --each limits a user's interactions, drawn with seed 0. No services run.

python -m benchmarks.sparse.sums --data FOLDER [--name yelp2018-13k] [--silos 8] [--users 2000] [--each 12]
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import render_table
from benchmarks.sparse.federation import measure_gains, place_items, sum_silos
from benchmarks.sparse.run import read_source
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import find_hits
from client_service.sums.basis import CommonBasis
from client_service.sums.registry import SILO_SUMS
from client_service.training.filter_search import best_filter
from client_service.training.fusion_search import fused_top
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.sums.item_basis import FEW_SIMULATED, choose_basis
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset
from simulation.partitioning.partition import build_part, partition_dataset

RESAMPLES = 2000
NAME_HELP = "a set of benchmarks/sparse/config.toml, or a folder"
Ways = dict[str, PerUser]


def draw_thin(dataset: Dataset, users: int, each: int | None, items: int, seed: int) -> Dataset:
    """Draws users with at most `each` interactions, and their most frequent items.

    Items with the same count are all kept or all left out, so that at most `items` remain. Users with fewer than 5
    interactions are left out.
    """
    table = dataset.events.select("user", "item")
    known = table["user"].unique().sort()
    drawn = known.sample(min(users, len(known)), seed=seed)
    table = (
        table.filter(pl.col("user").is_in(drawn.implode()))
        .sort("user", "item")
        .sample(fraction=1.0, shuffle=True, seed=seed)
    )
    if each is not None:
        table = table.group_by("user", maintain_order=True).head(each)
    counts = table["item"].value_counts().sort("count", descending=True)
    least = 1 if len(counts) <= items else int(counts["count"][items]) + 1
    often = counts.filter(pl.col("count") >= least)["item"]
    table = table.filter(pl.col("item").is_in(often.implode()))
    table = table.filter(pl.len().over("user") >= 5)
    return assemble_dataset(dataset.name, {WHOLE: table}, seed=seed, draws="table")


def parse_silos(description: str | None, arguments: Callable[[argparse.ArgumentParser], object]) -> argparse.Namespace:
    """Parses the options of the silos' data, and those that `arguments` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True)
    for name, number in (("silos", 8), ("users", 2000), ("items", 3000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--each", type=int)
    arguments(parser)
    return parser.parse_args()


def read_thin(given: argparse.Namespace) -> Dataset:
    """Reads the data set of this name and thins it by the options.

    The name is of `config.toml` or of a folder.
    """
    sets = tomllib.loads((Path(__file__).parent / "config.toml").read_text(encoding="utf-8"))["sets"]
    known = next((one for one in sets if one["data"] == given.name), {"data": given.name})
    source = {key: value for key, value in known.items() if key not in ("users", "fewest")}
    dataset = read_source(source, given.data / given.name, given.seed)
    return draw_thin(dataset, given.users, given.each, given.items, given.seed)


def cut_silos(dataset: Dataset, silos: int, seed: int) -> tuple[list[Shard], int]:
    """Cuts shards of random users; returns them with the number of all items.

    Their items have positions in the list of all items.
    """
    partition = partition_dataset(dataset, clients=silos, method="random", seed=seed)
    return place_items([build_part(dataset, part, part.name, ()) for part in partition.parts])


def measure_silo(shard: Shard, bases: dict[str, CommonBasis]) -> Ways:
    """Measures NDCG@20 of each test user, for each way to score."""
    spectrum = low_spectrum(shard.train, MethodSettings().cutoff)
    chosen, seen = best_filter(shard, spectrum).choice, sparse.csr_array(shard.train + shard.valid)

    def quality(basis: CommonBasis | None, covered_share: float = 1.0) -> PerUser:
        common = () if basis is None else SILO_SUMS[basis.kind].scorers(basis, shard)
        directions = None if basis is None else basis.directions
        top = fused_top(shard, spectrum, chosen, common, directions, covered_share)
        return METRICS[PRIMARY].per_user(*find_hits(top, shard.test, seen))

    found = {"alone": quality(None)}
    for kind, basis in bases.items():
        found[f"{kind}, listed"] = quality(basis)
        found[f"{kind}, told"] = quality(basis, SILO_SUMS[kind].covered_share(basis, shard))
    return found


def compare_ways(silos: list[Ways]) -> Iterator[list[str]]:
    """Yields a row per way.

    Mean, ratio to alone, silos behind, and the worst of them. The worst silos stand beside those by chance.
    """
    alone = [silo["alone"] for silo in silos]
    for way in silos[0]:
        values = [silo[way] for silo in silos]
        gains = measure_gains(values, alone, RESAMPLES, 0)
        ratio, low, high = gains.ratio
        yield [
            way,
            f"{np.concatenate(values).mean():.4f}",
            f"{ratio:.3f} [{low:.3f}, {high:.3f}]",
            f"{gains.below}, {gains.wholly} wholly of {gains.counted}",
            f"{gains.worst:.3f} (by chance {gains.by_chance:.3f})",
        ]


def main() -> None:
    """Runs the benchmark."""
    given = parse_silos(__doc__, lambda parser: parser.add_argument("--name", default="yelp2018-13k", help=NAME_HELP))
    with threadpool_limits(1):
        dataset = read_thin(given)
        shards, items = cut_silos(dataset, given.silos, given.seed)
        pairs = sum(shard.train.nnz for shard in shards)
        bases = {kind: sum_silos(shards, items, kind, given.seed) for kind in ("exact", "iterated")}
        reason = choose_basis(items, pairs, few=FEW_SIMULATED)[1]
        print(f"{given.name}: {len(shards)} silos, {pairs:,} training pairs; {reason}\n", flush=True)
        silos = [measure_silo(shard, bases) for shard in shards]
    head = ["way", "NDCG@20", "over alone", "silos below 1", "worst silos"]
    print(render_table(head, list(compare_ways(silos))))


if __name__ == "__main__":
    main()
