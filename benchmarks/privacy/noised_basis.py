"""Value of a noised common basis.

python -m benchmarks.privacy.noised_basis --data FOLDER [--silos 64]

Users are dealt to silos at random. Alone, each silo has EASE on its own data. With the noised sum it also has the
frequencies that stand out of the noise: a user's scores x V V^T, standardised and added with a weight. Ridge and
weight are chosen by validation, over all silos alike; test items are read once. The parts, their noise's scale and
the use of the sum are the client's own code; no service is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.attacks.population import all_matrices
from benchmarks.common import locate_data, render_table
from client_service.evaluation.ranking import evaluate, rank_by_scores, sample_validation_users
from client_service.models.closed_form.ease import ease_scores
from client_service.privacy.basis_guard import noise_deviation
from client_service.sums.basis import make_noised_basis
from client_service.sums.statistics import weigh_pairs
from shared.sums.item_basis import NOISE, WEIGHTED, entry_deviations
from shared.sums.sum import STEP

RIDGES, WEIGHTS = (50.0, 100.0, 200.0, 500.0), (0.0, 0.3, 1.0, 3.0)
DELTA, RANK = 1e-5, 128
Scores = NDArray[np.float32]
Splits = dict[str, sparse.csr_array]


def local_scores(splits: Splits, silo_of: NDArray[np.int64], ridge: float) -> Scores:
    """Computes EASE scores in each silo, (M, N)."""
    train = splits["train"]
    found = np.empty(train.shape, np.float32)
    for silo in range(int(silo_of.max()) + 1):
        rows = np.flatnonzero(silo_of == silo)
        found[rows] = ease_scores(sparse.csr_array(train[rows]), ridge)(np.arange(len(rows)))
    return found


def noised_vectors(train: sparse.csr_array, epsilon: float, silos: int) -> Scores:
    """Computes V of the noised sum over this many silos without drop-outs, (N, r).

    The noise has n parts, of which n - 1 are enough.
    """
    sums, deviation = weigh_pairs(train), noise_deviation(epsilon, DELTA)
    variance = deviation**2 * silos / (silos - 1)
    drawn = np.random.default_rng(0).standard_normal(sums[WEIGHTED].size)
    noise = np.rint(drawn * entry_deviations(drawn.size, np.sqrt(variance)) / STEP).astype(np.int64)
    noised = {WEIGHTED: sums[WEIGHTED] + noise.astype(np.uint32), NOISE: np.array([variance / STEP], np.uint32)}
    found = make_noised_basis(noised, train.shape[1], RANK).vectors
    assert found is not None
    return found


def standardise(scores: Scores) -> Scores:
    found: Scores = (scores - scores.mean(axis=1, keepdims=True)) / (scores.std(axis=1, keepdims=True) + 1e-9)
    return found


def judge(splits: Splits, scores: Callable[[NDArray[np.int64]], Scores], on: str) -> float:
    """Computes NDCG@20 as the user mean.

    On the validation items of at most 2,000 users, or on the test items of all.
    """
    train, top = splits["train"], rank_by_scores(scores)
    if on == "valid":
        return evaluate(top, splits["valid"], train, sample_validation_users(train.shape[0], 0)).primary_value
    return evaluate(top, splits["test"], sparse.csr_array(train + splits["valid"])).primary_value


def mix_scores(splits: Splits, own: Scores, vectors: Scores, weight: float) -> Callable[[NDArray[np.int64]], Scores]:
    """Returns a scorer that mixes local scores with the common frequencies."""

    def score(users: NDArray[np.int64]) -> Scores:
        if weight == 0.0:
            return own[users]
        common = (splits["train"][users] @ vectors) @ vectors.T
        return standardise(own[users]) + np.float32(weight) * standardise(common.astype(np.float32))

    return score


def measure(splits: Splits, silos: int, epsilons: list[float]) -> list[list[str]]:
    silo_of = np.random.default_rng(0).permutation(splits["train"].shape[0]) % silos
    judged = {ridge: judge(splits, local_scores(splits, silo_of, ridge).__getitem__, "valid") for ridge in RIDGES}
    own = local_scores(splits, silo_of, max(judged, key=judged.__getitem__))
    alone = judge(splits, own.__getitem__, "test")
    lines = []
    for epsilon in epsilons:
        vectors = noised_vectors(splits["train"], epsilon, silos)
        chosen = max(WEIGHTS, key=lambda weight: judge(splits, mix_scores(splits, own, vectors, weight), "valid"))
        together = judge(splits, mix_scores(splits, own, vectors, chosen), "test")
        figures = [f"{alone:.4f}", f"{together:.4f}", f"{together / alone:.3f}"]
        lines.append([str(silos), f"{epsilon:g}", str(vectors.shape[1]), f"{chosen:g}", *figures])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with a folder for each data set")
    parser.add_argument("--name", default="ml-1m", help="the data set; 'synthetic' needs no folder")
    parser.add_argument("--silos", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 3.0, 1.0])
    given = parser.parse_args()
    with threadpool_limits(1):
        splits = all_matrices(locate_data(given.name, given.data))
        lines = [line for silos in given.silos for line in measure(splits, silos, given.epsilons)]
    print(render_table(["silos", "epsilon", "frequencies", "weight", "alone", "with the sum", "ratio"], lines))


if __name__ == "__main__":
    main()
