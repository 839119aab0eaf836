"""Attacks on the sums of the common basis.

python -m benchmarks.attacks.sums --data FOLDER [--name ml-1m]

Silos of equal size are drawn at random from a real data set, and summed by the client's own code. The attacker knows
the whole population, but not which users are in which silo. Four questions, each for sums of 3, 4 and 16 silos:

- user: is this user, whose items are known, in the sum? By the likelihood ratio of each pair's count (exact), of each
  item's count (degrees), or by how far the sum leans to the user's part (products, noised).
- pair: does a user in the sum have these two items, which one or two users of the population have?
- item: does the first silo have an item that at most 20 users of the population have? The aggregator has the sum; all
  other silos together have it less their own parts.
- last: the share of its pairs that all other silos together learn of the last one, to the digit.

Another attack is a lying aggregator in an iterated run: it hands out a sum of its choice, from which all clients take
the same directions, and reads whole columns of pairs in the next round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.attacks.noise import gaussian_auc
from benchmarks.attacks.population import all_matrices
from benchmarks.attacks.scores import area_under_curve
from benchmarks.common import locate_data, render_table
from client_service.privacy.basis_guard import noise_deviation
from client_service.sums.statistics import normalised_products, raw_products
from client_service.sums.subspace_iteration import next_directions, start_directions
from shared.method.graph import degree_power, degrees

Float64 = NDArray[np.float64]
Csr = sparse.csr_array
DELTA, TARGETS = 1e-5, 150  # users in the sum, and as many outside; also for pairs
RARE_PAIR = 2  # users of the population at most


@dataclass(frozen=True, eq=False)
class SumPopulation:
    """The population's X, (M, N), and an attacker's computations on it."""

    matrix: Csr

    @cached_property
    def counts(self) -> Float64:
        return pair_counts(self.matrix)

    @cached_property
    def weighted(self) -> Float64:
        return weighted_pairs(self.matrix)

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        return degrees(self.matrix)[1].astype(np.int64)

    @cached_property
    def rare_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns of the pairs that few users have."""
        few = np.triu((self.counts > 0) & (self.counts <= RARE_PAIR), 1)
        rows, columns = np.nonzero(few)
        return rows, columns


@dataclass(frozen=True, eq=False)
class SiloSample:
    """Silos drawn from the population; members: rows of each silo's users."""

    population: SumPopulation
    members: tuple[NDArray[np.int64], ...]
    seed: int

    @cached_property
    def inside(self) -> Csr:
        """X of all silos in the sum."""
        return Csr(self.population.matrix[np.concatenate(self.members)])

    def noised_sum(self, epsilon: float) -> Float64:
        """Returns H of all silos in the sum with the noise of one release."""
        return add_noise(weighted_pairs(self.inside), epsilon, [self.seed, len(self.members)])

    @cached_property
    def share(self) -> float:
        return self.inside.shape[0] / self.population.matrix.shape[0]

    @cached_property
    def targets(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Draws users, and whether each is in the sum; half of them are."""
        rng, there = np.random.default_rng([self.seed, 1]), np.concatenate(self.members)
        absent = np.setdiff1d(np.arange(self.population.matrix.shape[0]), there)
        count = min(TARGETS, len(there))
        users = np.concatenate([rng.choice(there, count, replace=False), rng.choice(absent, count, replace=False)])
        return users, np.arange(len(users)) < count


def draw_silos(population: SumPopulation, silos: int, users: int, seed: int) -> SiloSample:
    order = np.random.default_rng([seed, silos]).permutation(population.matrix.shape[0])
    return SiloSample(population, tuple(order[silo * users : (silo + 1) * users] for silo in range(silos)), seed)


def pair_counts(interactions: Csr) -> Float64:
    found: Float64 = (interactions.T @ interactions).toarray()
    return found


def weighted_pairs(interactions: Csr) -> Float64:
    found: Float64 = (
        interactions.T @ sparse.diags_array(degree_power(degrees(interactions)[0], -1.0)) @ interactions
    ).toarray()
    return found


def add_noise(weighted: Float64, epsilon: float, seed: list[int]) -> Float64:
    noise = np.random.default_rng([*seed, 2]).standard_normal(weighted.shape)
    return weighted + noise_deviation(epsilon, DELTA) / 2.0 * (noise + noise.T)


SILOS, EPSILONS = (3, 4, 16), (8.0, 3.0, 1.0)
LEAST_PAIRS, RARE_ITEM = 3, 20
RANK, ROUNDS, EXPONENT = 64, 3, 0.25
FLOOR = 1e-3  # of a count that never occurs without the target


def score_by_pairs(drawn: SiloSample, least: int) -> Float64:
    """Scores targets by the likelihood ratio of pair counts; hidden counts are 0.

    Counts are Poisson with and without each target.
    """
    counts, known = pair_counts(drawn.inside), drawn.population.counts
    shown = np.where(counts >= least, counts, 0.0)

    def score(items: NDArray[np.int64]) -> float:
        upper = np.triu_indices(len(items), 1)
        seen = shown[np.ix_(items, items)][upper]
        mean = np.maximum(drawn.share * (known[np.ix_(items, items)][upper] - 1.0), FLOOR)
        likely: Float64 = np.where(seen > 0, np.log(np.maximum(seen, FLOOR) / mean), _log_below(mean, least))
        return float(likely.sum())

    return _scores(drawn, score)


def _log_below(mean: Float64, least: int) -> Float64:
    """Computes log P(1 + Poisson < least) / P(Poisson < least) for hidden counts."""
    terms = np.cumprod([np.ones_like(mean), *(mean / number for number in range(1, least))], axis=0)
    found: Float64 = np.log(np.maximum(terms[: least - 1].sum(axis=0), FLOOR) / terms.sum(axis=0))
    return found


def score_by_degrees(drawn: SiloSample) -> Float64:
    counts, known = degrees(drawn.inside)[1].astype(np.float64), drawn.population.degrees

    def score(items: NDArray[np.int64]) -> float:
        mean = np.maximum(drawn.share * (known[items] - 1.0), FLOOR)
        return float(np.log(np.maximum(counts[items], FLOOR) / mean).sum())

    return _scores(drawn, score)


def score_by_noised_sum(drawn: SiloSample, epsilon: float) -> Float64:
    """Scores targets by the product of H + noise with x x^T / |x|.

    It is the best test, but for the attacker's uncertainty about the other users.
    """
    noised = drawn.noised_sum(epsilon)
    rest = noised - drawn.share * drawn.population.weighted

    def score(items: NDArray[np.int64]) -> float:
        return float(rest[np.ix_(items, items)].sum() / len(items))

    return _scores(drawn, score)


def score_by_products(drawn: SiloSample) -> Float64:
    """Scores targets by how far the last iterated products lean to their part."""
    directions, all_degrees = last_directions(drawn.inside)
    scale = degree_power(all_degrees.astype(np.float64), -EXPONENT)
    mean = drawn.share * normalised_products(drawn.population.matrix, directions, EXPONENT, all_degrees)
    rest = normalised_products(drawn.inside, directions, EXPONENT, all_degrees) - mean

    def score(items: NDArray[np.int64]) -> float:
        own = scale[items] * len(items) ** -EXPONENT
        return float((rest[items] * np.outer(own, own @ directions[items])).sum())

    return _scores(drawn, score)


def last_directions(interactions: Csr) -> tuple[Float64, NDArray[np.int64]]:
    """Returns Q of the last round of an iterated run, and the degrees."""
    all_degrees = degrees(interactions)[1].astype(np.int64)
    directions = start_directions(0, interactions.shape[1], RANK)
    products = raw_products(interactions, directions, EXPONENT)
    for number in range(2, ROUNDS + 1):
        directions = next_directions(products, all_degrees, EXPONENT, first=number == 2)
        products = normalised_products(interactions, directions, EXPONENT, all_degrees)
    return directions, all_degrees


def _scores(drawn: SiloSample, score: Callable[[NDArray[np.int64]], float]) -> Float64:
    users, _ = drawn.targets
    return np.array([score(drawn.population.matrix[[user]].indices.astype(np.int64)) for user in users])


def user_views() -> dict[str, Callable[[SiloSample], Float64]]:
    noised = {f"noised, epsilon {epsilon:g}": _noised_view(epsilon) for epsilon in EPSILONS}
    return {
        "degrees alone": score_by_degrees,
        "exact, every pair": lambda drawn: score_by_pairs(drawn, 1),
        f"exact, pairs of {LEAST_PAIRS} and more": lambda drawn: score_by_pairs(drawn, LEAST_PAIRS),
        f"iterated, rank {RANK}": score_by_products,
    } | noised


def _noised_view(epsilon: float) -> Callable[[SiloSample], Float64]:
    return lambda drawn: score_by_noised_sum(drawn, epsilon)


def auc_limit(view: str) -> str:
    """Returns the AUC that the noise allows at most."""
    _, _, epsilon = view.partition("epsilon ")
    return f"{gaussian_auc(noise_deviation(float(epsilon), DELTA) ** -2.0):.3f}" if epsilon else ""


def pair_rows(draws: list[SiloSample]) -> Iterator[tuple[str, float]]:
    """Yields the AUC of whether a user in the sum has a rare pair."""
    seen = [_rare_pairs(drawn) for drawn in draws]
    views: dict[str, Callable[[SiloSample], Float64]] = {
        "exact, every pair": lambda drawn: pair_counts(drawn.inside),
        f"exact, pairs of {LEAST_PAIRS} and more": lambda drawn: _thresholded(pair_counts(drawn.inside)),
    }
    for epsilon in EPSILONS:
        views[f"noised, epsilon {epsilon:g}"] = _noised_matrix(epsilon)
    for name, view in views.items():
        scores = [view(drawn)[rows, columns] for drawn, (rows, columns, _) in zip(draws, seen, strict=True)]
        truths = [truth for _, _, truth in seen]
        yield name, area_under_curve(np.stack(scores), np.stack(truths))


def _thresholded(counts: Float64) -> Float64:
    return np.where(counts >= LEAST_PAIRS, counts, 0.0)


def _noised_matrix(epsilon: float) -> Callable[[SiloSample], Float64]:
    return lambda drawn: drawn.noised_sum(epsilon)


def _rare_pairs(drawn: SiloSample) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Draws rare pairs, half of which a user in the sum has."""
    (rows, columns), counts = drawn.population.rare_pairs, pair_counts(drawn.inside)
    there, rng = counts[rows, columns] > 0, np.random.default_rng([drawn.seed, 3])
    chosen = np.concatenate([rng.choice(np.flatnonzero(which), TARGETS) for which in (there, ~there)])
    return rows[chosen], columns[chosen], there[chosen]


def item_rows(draws: list[SiloSample]) -> Iterator[tuple[str, float]]:
    """Yields the AUC of rare items of the first silo, by the sum's diagonal."""
    views: dict[str, Callable[[SiloSample], Float64]] = {"exact": lambda drawn: pair_counts(drawn.inside)}
    for epsilon in EPSILONS:
        views[f"noised, epsilon {epsilon:g}"] = _noised_matrix(epsilon)
    for name, view in views.items():
        own = pair_counts if name == "exact" else weighted_pairs
        areas = [_item_areas(drawn, np.diag(view(drawn)), own) for drawn in draws]
        for who, found in zip(("the aggregator", "all other silos"), np.mean(areas, axis=0), strict=True):
            yield f"{name}; {who}", float(found)


def _item_areas(drawn: SiloSample, seen: Float64, own: Callable[[Csr], Float64]) -> tuple[float, float]:
    """Computes the AUC from the sum, and from the sum less the other silos' parts."""
    known, matrix = drawn.population.degrees, drawn.population.matrix
    rare = np.flatnonzero((known > 0) & (known <= RARE_ITEM))
    truth = degrees(Csr(matrix[drawn.members[0]]))[1][rare] > 0
    others = np.diag(own(Csr(matrix[np.concatenate(drawn.members[1:])])))
    scores = seen[rare], (seen - others)[rare]
    return tuple(area_under_curve(score[None], truth[None]) for score in scores)  # type: ignore[return-value]


def last_rows(draws: list[SiloSample]) -> Iterator[tuple[str, float]]:
    """Yields the shares of the last silo's pairs, and of the sum's pairs."""
    told, lone = [], []
    for drawn in draws:
        last = Csr(drawn.population.matrix[drawn.members[-1]])
        counts, own = (np.triu(pair_counts(one), 1) for one in (drawn.inside, last))
        there = own > 0
        told.append(float((counts[there] >= LEAST_PAIRS).mean()))
        lone.append(float((own[there] == counts[there]).mean()))
    yield "of its pairs all others learn, every pair summed", 1.0
    yield f"of its pairs all others learn, pairs of {LEAST_PAIRS} and more", float(np.mean(told))
    yield "of its pairs that no other silo in the sum has", float(np.mean(lone))


def lying_rows(draws: list[SiloSample]) -> Iterator[tuple[str, float]]:
    """Yields the success of an aggregator that chooses the directions.

    Its directions are unit vectors, so each round reveals columns of W, scaled back afterwards.
    """
    shares, hidden = [], []
    for drawn in draws:
        inside, chosen = drawn.inside, np.argsort(-degrees(drawn.inside)[1], kind="stable")[:RANK]
        handed_out = np.zeros((inside.shape[1], RANK))
        handed_out[chosen, np.arange(RANK)] = 1.0
        ones = np.ones(inside.shape[1], np.int64)  # degrees of its choice too: nothing is scaled
        directions = next_directions(handed_out, ones, EXPONENT, first=False)
        columns = normalised_products(inside, directions, EXPONENT, ones) * np.sign(directions[chosen, np.arange(RANK)])
        weights = degree_power(degrees(inside)[0], -2.0 * EXPONENT)
        true = inside.T @ (weights[:, None] * inside[:, chosen].toarray())
        shares.append(float(np.mean(np.abs(columns - true) < 2.0**-10)))
        few = pair_counts(inside)[:, chosen]
        hidden.append(float(((columns > 2.0**-10) & (few < LEAST_PAIRS)).sum() / max(1, (few > 0).sum())))
    yield f"of {RANK} columns of its choice that it reads in one round", float(np.mean(shares))
    yield f"of the pairs in them that fewer than {LEAST_PAIRS} users have", float(np.mean(hidden))


def make_tables(population: SumPopulation, users: int, draws: int) -> Iterator[str]:
    drawn = {silos: [draw_silos(population, silos, users, seed) for seed in range(draws)] for silos in SILOS}
    head = [f"{silos} silos" for silos in SILOS]
    lines = []
    for name, view in user_views().items():
        areas = [np.stack([view(one) for one in of]) for of in drawn.values()]
        truths = [np.stack([one.targets[1] for one in of]) for of in drawn.values()]
        lines.append([name, *(f"{area_under_curve(a, t):.3f}" for a, t in zip(areas, truths, strict=True))])
        lines[-1].append(auc_limit(name))
    yield "AUC: is this user in the sum?\n\n" + render_table(["what is summed", *head, "allowed"], lines)
    titles: Mapping[str, Callable[[list[SiloSample]], Iterator[tuple[str, float]]]] = {
        "AUC: does a user in the sum have this rare pair?": pair_rows,
        "AUC: does the first silo have this rare item?": item_rows,
        "Shares: what is told of the last silo": last_rows,
        "Shares: an aggregator that hands out a sum of its choice (iterated)": lying_rows,
    }
    for title, rows in titles.items():
        found = [dict(rows(of)) for of in drawn.values()]
        table = [[name, *(f"{one[name]:.3f}" for one in found)] for name in found[0]]
        yield f"{title}\n\n" + render_table(["", *head], table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with a folder for each data set")
    parser.add_argument("--name", default="ml-1m", help="the data set; 'synthetic' needs no folder")
    parser.add_argument("--users", type=int, default=100, help="of each silo")
    parser.add_argument("--draws", type=int, default=3, help="of silos, for each number of them")
    given = parser.parse_args()
    with threadpool_limits(1):
        population = SumPopulation(all_matrices(locate_data(given.name, given.data))["train"])
        for table in make_tables(population, given.users, given.draws):
            print(f"{table}\n", flush=True)


if __name__ == "__main__":
    main()
