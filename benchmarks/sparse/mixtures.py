"""Compares equal sums of silos' item pairs with sums weighted by FedGSP's W.

EASE of sums of all silos' pairs X'X, weighted for each silo: by W in the place of an equal sum, which is what LPSFed's
rhobar (Eq. 12) mixes with. Signatures are the leading directions of the silos' items on the graph of their users, two
orders. Ridge and own share by each silo's validation; test items are read once. NDCG@20 of a user, with the 95 %
interval of the paired difference to the equal sum.

python -m benchmarks.sparse.mixtures --data FOLDER [--name ml-100k] [--silos 8] [--items 500] [--cut users|random]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import render_table
from benchmarks.sparse.federation import place_items
from benchmarks.sparse.sums import NAME_HELP, parse_silos, read_thin
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import find_hits, rank_by_scores
from client_service.models.closed_form.ease import ease_from_pairs
from client_service.models.nodes.spectral_bases import UNKNOWN_HOMOPHILY, mixed_bases, propagation_matrix
from client_service.models.nodes.unifilter import lead_direction
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.strategies.collaboration_graph import GraphRule, advance_weights, begin_weights
from simulation.partitioning.partition import build_part, partition_dataset

ORDERS, STEPS, NORMAL = 2, 15, 1.96
RIDGES = (50.0, 150.0, 400.0, 1000.0)
OWN = (0.0, 1.0, 3.0)
EQUAL, ALONE = "equal sum", "alone"
RULES: Mapping[str, GraphRule] = {
    "W, with a floor": GraphRule(),
    "W as printed": GraphRule(weight_floor=0.0, gamma=1.0),
    "W, half of its own at least": GraphRule(least_own=0.5),
    "only R": GraphRule(terms="low"),
    "only S": GraphRule(terms="high"),
}


def describe_silos(shards: Sequence[Shard], items: int) -> tuple[Float64, Float64]:
    """Computes leading directions of items in each silo's graph of users, (M, K, N).

    Low and high frequencies have one array each.
    """
    sides: list[list[list[Float64]]] = [[], []]
    for shard in shards:
        wide = widen_items(shard.train, shard, items)
        alike = sparse.csr_array(wide @ wide.T)
        propagation = propagation_matrix(sparse.csr_array(alike - sparse.diags_array(alike.diagonal())))
        for side, tau in zip(sides, (1.0, 0.0), strict=True):
            bases = mixed_bases(propagation, wide, ORDERS, UNKNOWN_HOMOPHILY, tau)
            side.append([lead_direction(one.astype(np.float64)) for one in bases.others])
    low, high = (np.array(side) for side in sides)
    return low, high


def widen_items(matrix: sparse.csr_array, shard: Shard, items: int) -> sparse.csr_array:
    """Widens a silo's users to the list of all items, (M, N)."""
    found = sparse.coo_array(matrix)
    places = np.asarray(shard.places)[found.col]
    return sparse.csr_array((found.data.astype(np.float32), (found.row, places)), shape=(matrix.shape[0], items))


def learn_weights(low: Float64, high: Float64, rule: GraphRule) -> Float64:
    """Computes the mean of W over orders, once W has settled, (M, M)."""
    settled = []
    for order in range(low.shape[1]):
        weights = begin_weights(len(low))
        for _ in range(STEPS):
            weights = advance_weights(low[:, order], high[:, order], weights, rule).weights
        settled.append(weights)
    overall: Float64 = np.mean(settled, axis=0)
    return overall


def measure_mixture(shard: Shard, mixed: Float32, own: Float32, owns: Sequence[float]) -> PerUser:
    """Measures NDCG@20 of each test user by pairs of all silos and own ones.

    The ridge and the share are what validation takes.

    mixed, own: over the list of all items, (N, N).
    """
    places, best = np.asarray(shard.places), (-1.0, np.zeros((0, 0), np.float32))
    rows = np.ix_(places, places)
    for share in owns:
        for ridge in RIDGES:
            weights = ease_from_pairs(mixed[rows] + share * own[rows], ridge)
            valid = judge_lists(shard, weights, valid=True).mean()
            best = max(best, (float(valid), weights), key=lambda one: one[0])
    return judge_lists(shard, best[1], valid=False)


def judge_lists(shard: Shard, weights: Float32, *, valid: bool) -> PerUser:
    """Measures NDCG@20 of each user who has validation or test items."""
    seen = shard.train if valid else sparse.csr_array(shard.train + shard.valid)
    top = rank_by_scores(lambda rows: shard.train[rows] @ weights)
    return METRICS[PRIMARY].per_user(*find_hits(top, shard.valid if valid else shard.test, seen))


def measure_ways(shards: Sequence[Shard], items: int) -> dict[str, list[PerUser]]:
    """Measures the users of each silo by each way."""
    pairs = [(wide.T @ wide).toarray() for one in shards for wide in [widen_items(one.train, one, items)]]
    low, high = describe_silos(shards, items)
    count = len(shards)
    weights = {EQUAL: np.full((count, count), 1 / count), ALONE: np.eye(count) / count}
    weights |= {name: learn_weights(low, high, rule) for name, rule in RULES.items()}
    found: dict[str, list[PerUser]] = {}
    for name, rows in weights.items():
        for place, shard in enumerate(shards):
            mixed = np.einsum("j,jab->ab", count * rows[place], np.stack(pairs)).astype(np.float32)
            found.setdefault(name, []).append(measure_mixture(shard, mixed, pairs[place], (0.0,)))
            if name == EQUAL:
                own = measure_mixture(shard, mixed, pairs[place], OWN)
                found.setdefault("equal sum, own share by validation", []).append(own)
    return found


def compare_ways(found: Mapping[str, Sequence[PerUser]]) -> Iterator[list[str]]:
    """Yields a row per way: the mean, and the difference to the equal sum."""
    equal = np.concatenate(found[EQUAL])
    for name, silos in found.items():
        values = np.concatenate(silos)
        gain = values - equal
        error = NORMAL * gain.std(ddof=1) / np.sqrt(len(gain))
        yield [name, f"{values.mean():.4f}", "" if name == EQUAL else f"{gain.mean():+.4f} ± {error:.4f}"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of data set and cut."""
    parser.add_argument("--name", default="ml-100k", help=NAME_HELP)
    parser.add_argument("--cut", default="users", help="users: by taste; random")


def main() -> None:
    """Prints the comparison."""
    given = parse_silos(__doc__, add_options)
    with threadpool_limits(1):
        dataset = read_thin(given)
        partition = partition_dataset(dataset, clients=given.silos, method=given.cut, seed=given.seed)
        shards, items = place_items([build_part(dataset, part, part.name, ()) for part in partition.parts])
        print(f"{given.name}: {len(shards)} silos by {given.cut}, {items} items, seed {given.seed}\n", flush=True)
        print(
            render_table(
                ["pairs of items", "NDCG@20", "over the equal sum"], list(compare_ways(measure_ways(shards, items)))
            )
        )


if __name__ == "__main__":
    main()
