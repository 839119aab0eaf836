"""Recall of the graph search over items against every item scored, and what both cost, on made-up clustered embeddings.

python benchmarks/speed/approximate_search.py [--items 250000 1000000] [--clusters 500] [--breadths 200 400 1000 2000]
Without a breadth no graph is built; with one it wants the extra `approximate`. Both ways go through what the service
calls for one request, exclusions included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from client_service.models.ranker import Predictor, Ranker, Rows, Side
from client_service.models.score_fusion import Fusion
from client_service.runtime.interruption import NEVER
from client_service.serving.ann_index import BREADTH, Nearest, make_nearest

Answer = Callable[[Side, np.ndarray], Rows]  # a request's user and what is excluded -> the list
WIDTH = 64
SPREAD = 0.7  # of items around the centre of their cluster, whose own spread is 1
EXCLUDED = 50  # items that each user has seen


def made_up_ranker(items: int, users: int, clusters: int, seed: int = 0) -> Ranker:
    """Users and items around the same centres; some items are longer, as popular ones are."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((clusters, WIDTH))

    def around(count: int) -> np.ndarray:
        return centres[random.integers(clusters, size=count)] + SPREAD * random.standard_normal((count, WIDTH))

    loud = (1.0 + random.pareto(1.5, items)) ** 0.25
    nothing = np.zeros((0, 0), dtype=np.float32)
    sides = [Side(one.astype(np.float32), nothing, nothing) for one in (around(users), around(items) * loud[:, None])]
    predictor = Predictor(nothing, np.zeros(0, dtype=np.float32), np.float32(0.0))
    return Ranker(sides[0], sides[1].by_columns(), predictor, residual=True, fusion=Fusion())


def one_by_one(answer: Answer, ranker: Ranker, seen: np.ndarray) -> tuple[float, np.ndarray]:
    """Milliseconds a request, and the lists."""
    found, began = [], time.perf_counter()
    for row in range(len(ranker.users.embedding)):
        excluded = np.zeros((1, len(ranker.items.embedding)), dtype=bool)
        excluded[0, seen[row]] = True
        side = ranker.users
        found.append(answer(Side(side.embedding[row : row + 1], side.narrow, side.hidden), excluded)[0])
    return 1000 * (time.perf_counter() - began) / len(found), np.stack(found)


def group_milliseconds(ranker: Ranker, size: int, k: int) -> float:
    """A request where so many are scored together, as baskets that wait are."""
    excluded = np.zeros((size, len(ranker.items.embedding)), dtype=bool)
    side, began = ranker.users, time.perf_counter()
    ranker.top_scored(Side(side.embedding[:size], side.narrow, side.hidden), excluded, k)
    return 1000 * (time.perf_counter() - began) / size


def recall(lists: np.ndarray, exact: np.ndarray) -> float:
    """Mean share of the exact list that is found."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(lists, exact, strict=True)]))


def measure(items: int, users: int, clusters: int, breadths: Sequence[int]) -> None:
    """Print a line for each way."""
    ranker = made_up_ranker(items, users, clusters)
    seen = np.random.default_rng(1).integers(items, size=(users, EXCLUDED))
    exact = {}
    for k in (20, 100):
        taken, exact[k] = one_by_one(lambda side, out, k=k: ranker.top_scored(side, out, k)[0], ranker, seen)
        print(
            f"{items} items, exact, k {k}: {taken:.2f} ms; {group_milliseconds(ranker, 16, k):.2f} ms in a group of 16"
        )
    if not breadths:
        return
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        nearest = make_nearest(Path(folder), ranker, NEVER, 1)
        assert nearest is not None, "the extra `approximate` is not installed"
        seconds, (file,) = time.perf_counter() - began, list(Path(folder).iterdir())
        print(f"{items} items, the graph: built in {seconds:.0f} s on one core, {file.stat().st_size / 1e6:.0f} MB")
        for breadth in breadths:
            print_breadth(nearest, breadth, ranker, seen, exact)


def print_breadth(
    nearest: Nearest, breadth: int, ranker: Ranker, seen: np.ndarray, exact: dict[int, np.ndarray]
) -> None:
    """Milliseconds and recall where a search keeps so many items in view."""
    nearest._index.expansion_search = breadth
    for k, wanted in exact.items():
        taken, lists = one_by_one(lambda side, out, k=k: nearest.top_scored(side, out, k)[0], ranker, seen)
        own = " (the service's)" if breadth == BREADTH else ""
        print(f"  breadth {breadth}{own}, k {k}: {taken:.2f} ms, recall {recall(lists, wanted):.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[250_000, 1_000_000])
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--clusters", type=int, default=500)
    parser.add_argument("--breadths", type=int, nargs="*", default=[200, 400, 1000, 2000])
    arguments = parser.parse_args()
    for items in arguments.items:
        measure(items, arguments.users, arguments.clusters, arguments.breadths)


if __name__ == "__main__":
    main()
