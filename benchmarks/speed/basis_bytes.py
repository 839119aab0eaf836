"""Quality of the common frequencies by the bytes of a silo, for several iterations.

They are those of the services, and others that were tried. Users are dealt to silos at random; each way sums, in
integers, the silos' parts, and keeps `--rank` frequencies. bytes: a silo's bytes per item in all rounds. energy:
||R V||^2 of the basis against that of the leading frequencies of all data. NDCG@20: on validation items of at most
2,000
users, ranked among all items by the low-pass filter that a silo makes of the basis alone. Test items are not read.

python -m benchmarks.speed.basis_bytes --data FOLDER [--name ml-1m] [--silos 16]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh
from threadpoolctl import threadpool_limits

from benchmarks.attacks.population import all_matrices
from benchmarks.common import locate_data, render_table
from client_service.evaluation.ranking import evaluate, rank_by_scores, sample_validation_users
from client_service.sums.basis import CommonBasis
from client_service.sums.scorers import common_scorers
from client_service.sums.statistics import begin_sums, encode_sums, normalised_products, pack_sums, raw_products
from client_service.sums.subspace_iteration import (
    ExploredSubspace,
    explore,
    finish_basis,
    first_directions,
    next_directions,
    start_directions,
)
from shared.method.graph import degrees, normalise
from shared.sums.item_basis import PRODUCTS
from shared.sums.sum import UInt32, decode_fixed, encode_fixed

EXPONENT, SEED, WORD = 0.25, 7, 4
KEPT = 0.9  # of the users were in the run before
Float64 = NDArray[np.float64]
Found = tuple[Float64, Float64]  # vectors and values
Sums = dict[str, UInt32]


@dataclass(frozen=True)
class IteratedWay:
    """One way to iterate; bytes: per item, in all rounds; make: computes the basis."""

    name: str
    rounds: int
    bytes: int
    make: Callable[[], Found]


@dataclass(frozen=True, eq=False)
class Iterations:
    """Iterations over silos; silos: X_c of each; rank: number of frequencies kept."""

    silos: tuple[sparse.csr_array, ...]
    rank: int

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        return sum(degrees(silo)[1] for silo in self.silos).astype(np.int64)  # type: ignore[union-attr]

    @property
    def items(self) -> int:
        return int(self.silos[0].shape[1])

    def sum(self, part: Callable[[sparse.csr_array], Sums]) -> Sums:
        """Sums the silos' parts as the aggregator does."""
        found: Sums = {}
        for silo in self.silos:
            found = {name: one + found.get(name, np.uint32(0)) for name, one in part(silo).items()}
        return found

    def multiply(self, directions: Float64) -> Float64:
        """Computes W Q in fixed point, one word per number."""

        def part(silo: sparse.csr_array) -> Sums:
            products = normalised_products(silo, directions, EXPONENT, self.degrees)
            return {PRODUCTS: encode_fixed(products, len(self.silos), PRODUCTS)}

        return decode_fixed(self.sum(part)[PRODUCTS])

    def iterate(self, start: Float64, rounds: int, momentum: float = 0.0) -> Found:
        """Iterates from start directions; momentum: of the directions before the last."""
        directions, before = start, np.zeros_like(start)
        for _ in range(rounds - 1):
            products = self.multiply(directions)
            turned, change = np.linalg.qr(products - momentum * before)
            directions, before = turned, np.linalg.solve(change.T, directions.T).T
        return self._leading(directions, self.multiply(directions))

    def _leading(self, directions: Float64, products: Float64) -> Found:
        vectors, values = finish_basis(directions, products)
        return vectors[:, : self.rank], values[: self.rank]

    def last_round(self, width: int, rounds: int) -> Found:
        """Iterates as the services do without basis.words."""
        count = len(self.silos)
        start = start_directions(SEED, self.items, width)
        sums = self.sum(lambda silo: encode_sums(silo, raw_products(silo, start, EXPONENT), count))
        first = next_directions(decode_fixed(sums[PRODUCTS]), self.degrees, EXPONENT, first=True)
        return self.iterate(first, rounds - 1)

    def first_of_all(self, words: int) -> Sums:
        """Computes the first round with basis.words."""
        start = first_directions(SEED, self.items, words)
        count = len(self.silos)
        return self.sum(lambda silo: begin_sums(silo, start, EXPONENT, count))

    def all_rounds(self, words: int, rounds: int) -> Found:
        """Iterates as the services do with basis.words."""
        sums = [self.first_of_all(words)]
        for _ in range(rounds - 1):
            known = explore(sums, EXPONENT, SEED)
            sums.append(self.sum(lambda silo, known=known: pack_sums(silo, known)))  # type: ignore[misc]
        return explore(sums, EXPONENT, SEED).finish(self.rank)

    def all_rounds_rounded(self, words: int, rounds: int, coarser: float) -> Found:
        """Iterates with basis.words and steps `coarser` times as large.

        2^-16: products as they are sent without packing.
        """
        known = explore([self.first_of_all(words)], EXPONENT, SEED)
        known = replace(known, steps=known.steps * coarser)
        for _ in range(rounds - 1):
            known = self._learn_rounded(known)
        return known.finish(self.rank)

    def _learn_rounded(self, known: ExploredSubspace) -> ExploredSubspace:
        directions = known.next_directions
        parts = (normalised_products(silo, directions, EXPONENT, self.degrees) for silo in self.silos)
        products = sum(np.rint(part / known.steps) for part in parts) * known.steps
        both = (np.hstack([known.directions, directions]), np.hstack([known.products, products]))
        return replace(known, directions=both[0], products=both[1])

    def popular_start(self) -> Float64:
        """Returns indicators of the items with the most users."""
        found = np.zeros((self.items, self.rank))
        found[np.argsort(-self.degrees, kind="stable")[: self.rank], np.arange(self.rank)] = 1.0
        return found

    def local_start(self, power: int) -> Float64:
        """Takes `power` steps on each silo's own graph before the first sum."""
        start = start_directions(SEED, self.items, self.rank)

        def part(silo: sparse.csr_array) -> Sums:
            walked = start
            for _ in range(power):
                walked = normalised_products(silo, walked, EXPONENT, self.degrees)
            return {PRODUCTS: encode_fixed(walked, len(self.silos), PRODUCTS)}

        return np.linalg.qr(decode_fixed(self.sum(part)[PRODUCTS]))[0]

    def earlier_start(self) -> Float64:
        """Returns the basis of a run on most of the same users."""
        generator = np.random.default_rng(SEED)
        few = tuple(sparse.csr_array(silo[generator.random(silo.shape[0]) < KEPT]) for silo in self.silos)
        return replace(self, silos=few).all_rounds(self.rank // 2, 3)[0]

    def without_rare(self, least: int) -> Found:
        """Iterates three rounds with rows of items with at least `least` users only."""
        vectors, values = self.last_round(self.rank, 3)
        return np.where((self.degrees >= least)[:, None], vectors, 0.0), values


def list_ways(made: Iterations) -> Iterator[IteratedWay]:
    """Yields the ways in the order of the table."""
    rank = made.rank

    def bytes_of(width: int, rounds: int) -> int:
        return WORD * (width + 1) * rounds

    for rounds in (2, 3, 4):
        yield IteratedWay(
            "last round", rounds, bytes_of(rank, rounds), lambda rounds=rounds: made.last_round(rank, rounds)
        )
    for words, rounds in ((64, 3), (64, 4), (48, 3), (48, 4), (32, 4), (32, 5), (32, 6)):
        name = f"**all rounds, basis.words = {words}**"
        yield IteratedWay(name, rounds, bytes_of(words, rounds), lambda w=words, n=rounds: made.all_rounds(w, n))
    yield IteratedWay(
        "the same, 64, 32 bits throughout",
        3,
        WORD * (65 + 2 * 129),
        lambda: made.all_rounds_rounded(64, 3, 2.0**-16),
    )
    yield IteratedWay("the same, 64, 8 bits", 3, WORD * (65 + 2 * 33), lambda: made.all_rounds_rounded(64, 3, 2.0**8))
    for momentum in (0.0, 0.25, 1.0):
        yield IteratedWay(
            f"last round, degrees known before, momentum {momentum:g} lambda_r",
            3,
            bytes_of(rank, 3),
            lambda m=momentum: made.iterate(
                start_directions(SEED, made.items, rank), 3, m * float(made.last_round(rank, 2)[1][-1])
            ),
        )
    yield IteratedWay(
        "last round, 1.5 times the rank", 2, bytes_of(rank * 3 // 2, 2), lambda: made.last_round(rank * 3 // 2, 2)
    )
    yield IteratedWay(
        "last round, from the most popular items", 3, bytes_of(rank, 3), lambda: made.iterate(made.popular_start(), 3)
    )
    for power in (2, 3):
        yield IteratedWay(
            f"last round, {power} steps in each silo first",
            2,
            bytes_of(rank, 2),
            lambda p=power: made.iterate(made.local_start(p), 1),
        )
    yield IteratedWay(
        f"from the basis of {KEPT:.0%} of the users",
        1,
        bytes_of(rank, 1),
        lambda: made.iterate(made.earlier_start(), 1),
    )
    for least in (3, 10):
        share = float((made.degrees >= least).mean())
        yield IteratedWay(
            f"last round, without items of fewer than {least} users",
            3,
            round(bytes_of(rank, 3) * share),
            lambda k=least: made.without_rare(k),
        )


@dataclass(frozen=True, eq=False)
class FrequencyJudge:
    """Evaluation of a basis; splits: all users' matrices."""

    splits: dict[str, sparse.csr_array]
    rank: int

    @cached_property
    def graph(self) -> sparse.csr_array:
        """R of all data."""
        return sparse.csr_array(normalise(self.splits["train"], EXPONENT))

    @cached_property
    def leading(self) -> Found:
        """Leading frequencies of all data."""
        graph, items = self.graph, self.graph.shape[1]
        operator = LinearOperator((items, items), matvec=lambda x: graph.T @ (graph @ x))
        values, vectors = eigsh(operator, k=self.rank, v0=np.ones(items))
        return vectors[:, ::-1], values[::-1]

    def energy(self, vectors: Float64) -> float:
        return float(((self.graph @ vectors) ** 2).sum() / self.leading[1].sum())

    def quality(self, found: Found) -> float:
        train = self.splits["train"]
        whole = degrees(train)[1].astype(np.int64)
        basis = CommonBasis("iterated", EXPONENT, whole, vectors=found[0].astype(np.float32), values=found[1])
        low_pass = common_scorers(basis, np.arange(len(whole)), train)[0]
        top = rank_by_scores(lambda users: low_pass.decode(low_pass.encode(sparse.csr_array(train[users]))))
        return evaluate(top, self.splits["valid"], train, sample_validation_users(train.shape[0], 0)).primary_value

    def line(self, name: str, rounds: str, bytes_: str, found: Found) -> list[str]:
        return [name, rounds, bytes_, f"{self.energy(found[0]):.4f}", f"{self.quality(found):.4f}"]


def deal_users(train: sparse.csr_array, silos: int) -> tuple[sparse.csr_array, ...]:
    silo_of = np.random.default_rng(0).permutation(train.shape[0]) % silos
    return tuple(sparse.csr_array(train[np.flatnonzero(silo_of == silo)]) for silo in range(silos))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with a folder for each data set")
    parser.add_argument("--name", default="ml-1m", help="the data set; 'synthetic' needs no folder")
    parser.add_argument("--silos", type=int, default=16)
    parser.add_argument("--rank", type=int, default=128)
    given = parser.parse_args()
    with threadpool_limits(1):
        splits = all_matrices(locate_data(given.name, given.data))
        made, judge = (
            Iterations(deal_users(splits["train"], given.silos), given.rank),
            FrequencyJudge(splits, given.rank),
        )
        lines = [judge.line("the leading frequencies of all data", "", "", judge.leading)]
        for way in list_ways(made):
            lines.append(judge.line(way.name, str(way.rounds), f"{way.bytes:,}", way.make()))
    print(render_table(["way", "rounds", "bytes for an item", "energy", "NDCG@20"], lines))


if __name__ == "__main__":
    main()
