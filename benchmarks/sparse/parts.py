"""Gain of each scorer of the fusion for a silo's own lists.

All scorers are compared with all but one. A user's NDCG@20 on test items, paired: the mean difference has the 95 %
interval over users. `without` a part: only the others, weighted anew. --each limits a user's interactions, --some
measures the first silos only. No services run and nothing is trained.

python -m benchmarks.sparse.parts --data FOLDER [--name ml-1m] [--silos 8] [--users 2000] [--parts edlae,rp3beta]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import render_table
from benchmarks.sparse.sums import NAME_HELP, cut_silos, parse_silos, read_thin
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import find_hits
from client_service.models.closed_form.registry import PARTS
from client_service.training.filter_search import best_filter
from client_service.training.fusion_search import fused_top
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum

ALL, NORMAL = "all", 1.96


@contextmanager
def leave_out(names: list[str]) -> Iterator[None]:
    """Removes these scorers from the registry within a context."""
    kept = dict(PARTS)
    for name in names:
        del PARTS[name]
    try:
        yield
    finally:
        PARTS.clear()
        PARTS.update(kept)


def measure_parts(shard: Shard, names: list[str]) -> dict[str, PerUser]:
    """Measures NDCG@20 of each test user with all scorers and without some.

    Without each of them, and without all of these.
    """
    spectrum = low_spectrum(shard.train, MethodSettings().cutoff)
    chosen, seen = best_filter(shard, spectrum).choice, sparse.csr_array(shard.train + shard.valid)
    ways: dict[str, list[str]] = {ALL: [], **{f"without {name}": [name] for name in names}}
    if len(names) > 1:
        ways["without any of these"] = names
    found = {}
    for way, without in ways.items():
        with leave_out(without):
            top = fused_top(shard, spectrum, chosen)
        found[way] = METRICS[PRIMARY].per_user(*find_hits(top, shard.test, seen))
    return found


def compare_parts(silos: list[dict[str, PerUser]]) -> Iterator[list[str]]:
    """Yields a row per way.

    The mean, and the gain of the scorers that it lacks.
    """
    whole = np.concatenate([silo[ALL] for silo in silos])
    for way in silos[0]:
        values = np.concatenate([silo[way] for silo in silos])
        gain = whole - values
        error = NORMAL * gain.std(ddof=1) / np.sqrt(len(gain))
        yield [way, f"{values.mean():.4f}", f"{gain.mean():+.4f} ± {error:.4f}"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds options for the data set, the scorers, and the number of silos."""
    parser.add_argument("--name", default="ml-1m", help=NAME_HELP)
    parser.add_argument("--parts", default=",".join(PARTS), help="scorers to leave out, with commas between")
    parser.add_argument("--some", type=int, default=1000)


def main() -> None:
    """Runs the benchmark."""
    given = parse_silos(__doc__, add_options)
    with threadpool_limits(1):
        shards = cut_silos(read_thin(given), given.silos, given.seed)[0][: given.some]
        silos = [measure_parts(shard, given.parts.split(",")) for shard in shards]
    print(f"{given.name}: {len(silos)} silos, {sum(shard.train.nnz for shard in shards):,} training pairs\n")
    print(render_table(["scorers", "NDCG@20", "what these bring"], list(compare_parts(silos))))


if __name__ == "__main__":
    main()
