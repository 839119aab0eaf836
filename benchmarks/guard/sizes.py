"""Costs of a silo by its size, on generated data, with slopes and a plot.

python -m benchmarks.guard.sizes [--users 2000] [--items 1200] [--plot docs/figures/cost_against_size.svg]

The machine's own limits stand beside them. Times are processor times with one thread. A slope is that of a line
through the logarithms: 1 is in proportion. The generator gives a user items in proportion to the catalogue, so that
pairs grow with users and with items; with `pairs` the catalogue and the users stay and a share of the training pairs
is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib import pyplot

from benchmarks.common import STEADY, render_table
from benchmarks.guard.learning import prepare_epoch
from benchmarks.guard.measuring import measure_time, processor_seconds
from benchmarks.guard.serving import prepare_serving
from benchmarks.guard.silo import CPU, NAME, GeneratedSilo, keep_first_model
from client_service.compilation.item_publisher import fill_lists
from client_service.compiled.model import LENGTH, MappedLists
from client_service.data.interaction_files import load_shard
from client_service.federation.best_model import load_model
from client_service.model_store.model_files import ServedItems
from client_service.runtime.device import pin_threads
from client_service.runtime.interruption import NEVER
from client_service.tasks.items import ITEMS
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.datasets.synthetic import generate_dataset
from simulation.partitioning.partition import partition_dataset, write_partition

MIDDLE = (2000, 1200)
FACTORS = (0.5, 1.0, 2.0)
COSTS = ("first model, s", "epoch, s", "lists of all users, s", "basket, ms")


@dataclass(frozen=True)
class SizedCosts:
    """A silo's size, and its costs in the order of COSTS."""

    users: int
    items: int
    pairs: int
    costs: tuple[float, ...]


def measure_limits() -> str:
    """Measures float32 GEMM and memory speed of one core."""
    side, draw = 2048, np.random.default_rng(0)
    left, right = draw.standard_normal((2, side, side), dtype=np.float32)
    source = np.ones(1 << 25, dtype=np.float32)
    target = np.empty_like(source)
    product = min(_seconds(lambda: left @ right) for _ in range(5))
    copy = min(_seconds(lambda: np.copyto(target, source)) for _ in range(10))
    return f"{2e-9 * side**3 / product:.0f} GFLOP/s of GEMM, {2e-9 * source.nbytes / copy:.1f} GB/s read and written"


def _seconds(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def make_sized_silo(folder: Path, users: int, items: int, share: float) -> GeneratedSilo:
    """Creates a silo with a share of the training pairs.

    Each user and each item keeps its first.
    """
    dataset = generate_dataset(0, users=users, items=items)
    if share < 1:
        kept = np.random.default_rng(0).random(len(dataset.events)) < share
        events = dataset.events
        first = events.with_row_index().group_by("user").agg(pl.col("index").first())
        kept[first["index"].to_numpy()] = True
        dataset = dataclasses.replace(dataset, events=events.filter(kept))
    parts = partition_dataset(dataset, clients=1, method="random", seed=0)
    (shard,) = write_partition(dataset, parts, folder / "shards")
    return GeneratedSilo(shard, folder / "state")


async def measure_silo(silo: GeneratedSilo) -> SizedCosts:
    """Measures each cost once: a size is measured among others."""
    first = _seconds(lambda: keep_first_model(silo.shard, silo.state))
    ensure_key_pair(NAME, silo.state)
    shard = load_shard(silo.shard)
    async with prepare_epoch(silo, silo.state) as prepared:
        (timed,) = prepared.timed
        epoch = await processor_seconds(timed.work)
    lists = _seconds(lambda: _list_all(silo))
    async with prepare_serving(silo, silo.state) as prepared:
        basket = next(one for one in prepared.timed if one.name == "basket")
        milliseconds = float((await measure_time(basket)).text.partition(" ")[0])
    return SizedCosts(*shard.train.shape, shard.train.nnz, (first, epoch, lists, milliseconds))


def _list_all(silo: GeneratedSilo) -> None:
    shard = load_shard(silo.shard)
    served = load_model(ITEMS, shard, silo.state / "model", CPU)
    assert isinstance(served, ServedItems)
    shape = len(shard.user_ids), min(LENGTH, len(shard.item_ids))
    lists = MappedLists(np.empty(shape, np.int32), np.empty(shape, np.float32), np.zeros(1, np.int64))
    fill_lists(served.ranker, lists, shard, NEVER, threads=1)


def measure_sizes(users: int, items: int) -> dict[str, list[SizedCosts]]:
    """Measures varied sizes around these, ascending, by the varied number."""
    wanted = {
        "users": [(round(users * factor), items, 1.0) for factor in FACTORS],
        "items": [(users, round(items * factor), 1.0) for factor in FACTORS],
        "pairs": [(users, items, share) for share in (0.25, 0.5, 1.0)],
    }
    known: dict[tuple[int, int, float], SizedCosts] = {}
    for size in dict.fromkeys(size for sizes in wanted.values() for size in sizes):
        with tempfile.TemporaryDirectory() as folder:
            known[size] = asyncio.run(measure_silo(make_sized_silo(Path(folder), *size)))
    return {what: [known[size] for size in sizes] for what, sizes in wanted.items()}


def slopes(what: str, sizes: list[SizedCosts]) -> list[float]:
    """Computes the slope of each cost against the varied number."""
    x = np.log([getattr(one, what) for one in sizes])
    return [float(np.polyfit(x, np.log([one.costs[n] for one in sizes]), 1)[0]) for n in range(len(COSTS))]


def draw(measured: dict[str, list[SizedCosts]], path: Path) -> None:
    """Plots a panel per varied number."""
    pyplot.switch_backend("Agg")
    with pyplot.rc_context(STEADY):
        figure, axes = pyplot.subplots(1, len(measured), figsize=(9, 3), layout="constrained", sharey=True)
        for axis, (what, sizes) in zip(axes, measured.items(), strict=True):
            for number, name in enumerate(COSTS):
                axis.loglog(
                    [getattr(one, what) for one in sizes], [one.costs[number] for one in sizes], "o-", label=name
                )
            axis.set_xlabel(what)
        axes[0].legend()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=MIDDLE[0], help="of the size in the middle")
    parser.add_argument("--items", type=int, default=MIDDLE[1])
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    pin_threads(1)
    print(f"one core: {measure_limits()}\n", flush=True)
    measured = measure_sizes(arguments.users, arguments.items)
    every = dict.fromkeys(one for sizes in measured.values() for one in sizes)
    rows = [
        [f"{one.users:,}", f"{one.items:,}", f"{one.pairs:,}", *(f"{cost:.3g}" for cost in one.costs)] for one in every
    ]
    print(render_table(("users", "items", "pairs", *COSTS), rows) + "\n")
    rows = [[what, *(f"{slope:.2f}" for slope in slopes(what, sizes))] for what, sizes in measured.items()]
    print(render_table(("slope against", *COSTS), rows))
    if arguments.plot:
        draw(measured, arguments.plot)


if __name__ == "__main__":
    main()
