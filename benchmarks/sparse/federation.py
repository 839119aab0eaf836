"""Sums over the silos of a cut, lists with and without them, and gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.evaluation.metrics import METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import find_hits, rank_by_scores
from client_service.models.initial_filter import Filter
from client_service.models.score_fusion import Recipe, build_fusion, select_codes
from client_service.sums.basis import CommonBasis, make_exact_basis, make_iterated_basis
from client_service.sums.registry import SILO_SUMS
from client_service.sums.statistics import begin_sums, catalogue_matrix, count_pairs, pack_sums
from client_service.sums.subspace_iteration import explore, first_directions
from client_service.training.filter_search import filter_scores
from client_service.training.fusion_search import best_recipe
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.spectrum import Spectrum
from shared.sums.item_basis import DEGREES, FEW_SIMULATED, choose_basis, hide_rare_pairs

WORST = 0.05  # of the silos
NULLS = 200  # draws of the worst silos without any gain or loss
MOST_RATIO = 1000.0  # limit for a silo with few hits
LEVEL = 95.0  # per cent of the resamples in an interval
USUAL = BasisSettings(words=64)


def ratio_interval(own: PerUser, other: PerUser, resamples: int, seed: int) -> list[float]:
    """Computes the ratio of the means and its interval by bootstrap over users.

    The same users are drawn for both.
    """
    rows = np.random.default_rng(seed).integers(0, len(own), (resamples, len(own)))
    drawn = own[rows].mean(1) / np.maximum(other[rows].mean(1), np.finfo(float).tiny)
    ends = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return [float(own.mean() / other.mean()), float(ends[0]), float(ends[1])]


def place_items(shards: Sequence[Shard]) -> tuple[list[Shard], int]:
    """Returns the shards with positions in the list of all items, and its length."""
    rows = {item: row for row, item in enumerate(sorted({item for shard in shards for item in shard.item_ids}))}
    placed = [replace(shard, places=np.array([rows[item] for item in shard.item_ids])) for shard in shards]
    return placed, len(rows)


def sum_silos(shards: Sequence[Shard], items: int, kind: str, seed: int) -> CommonBasis:
    """Computes the sums of the silos' training pairs, as a basis run does."""
    whole = sparse.csr_array(sparse.vstack([catalogue_matrix(shard, items) for shard in shards]))
    if kind == "exact":
        counted = hide_rare_pairs(MethodSettings(catalogue=items), count_pairs(whole))
        return make_exact_basis(counted, USUAL.exponent)
    assert USUAL.words is not None
    sums = [begin_sums(whole, first_directions(seed, items, USUAL.words), USUAL.exponent, len(shards))]
    while len(sums) < USUAL.rounds:
        sums.append(pack_sums(whole, explore(sums, USUAL.exponent, seed)))
    return make_iterated_basis(explore(sums, USUAL.exponent, seed), sums[0][DEGREES], USUAL.rank)


def choose_sums(shards: Sequence[Shard], items: int, seed: int) -> CommonBasis:
    """Computes sums of the kind that the number of training pairs chooses."""
    settings, _ = choose_basis(items, sum(shard.train.nnz for shard in shards), few=FEW_SIMULATED)
    return sum_silos(shards, items, str(settings["kind"]), seed)


class ListPair(NamedTuple):
    """Hits of each test user's two lists on held-out items, and the number of these."""

    alone: tuple[Any, Any]
    together: tuple[Any, Any]


def make_list_pair(shard: Shard, basis: CommonBasis, spectrum: Spectrum, chosen: Filter) -> ListPair:
    """Ranks lists alone and with sums, with the same weights of the silo's own parts.

    chosen: filter to begin with.
    """
    entry = SILO_SUMS[basis.kind]
    common = entry.scorers(basis, shard)
    covered_share, directions = entry.covered_share(basis, shard), basis.directions
    recipe = best_recipe(shard, spectrum, chosen, common=common, directions=directions, covered_share=covered_share)
    alone = replace(recipe, common_loudness=0.0)
    return ListPair(_hits(shard, spectrum, chosen, alone, ()), _hits(shard, spectrum, chosen, recipe, common))


def _hits(shard: Shard, spectrum: Spectrum, chosen: Filter, recipe: Recipe, common: Sequence[Any]) -> tuple[Any, Any]:
    fusion = build_fusion(recipe, shard.train, spectrum, common)
    base, codes = filter_scores(chosen, spectrum, shard.train), fusion.encode(shard.train)
    top = rank_by_scores(lambda rows: fusion.add_to(base(rows), select_codes(codes, rows)))
    return find_hits(top, shard.test, sparse.csr_array(shard.train + shard.valid))


def primary(hits: tuple[Any, Any]) -> PerUser:
    """Computes NDCG@20 of each test user."""
    return METRICS[PRIMARY].per_user(*hits)


class Gains(NamedTuple):
    """Gains of several silos, together over alone."""

    ratio: list[float]
    below: int
    wholly: int
    worst: float
    by_chance: float
    counted: int


def measure_gains(together: Sequence[PerUser], alone: Sequence[PerUser], resamples: int, seed: int) -> Gains:
    """Computes `Gains` from the figures of several silos."""
    pairs = [(one, other) for one, other in zip(together, alone, strict=True) if len(other) and other.sum() > 0]
    each = np.array([ratio_interval(one, other, resamples, seed) for one, other in pairs])
    generator = np.random.default_rng(seed)
    drawn = np.stack([_swapped_ratios(one, other, generator) for one, other in pairs], axis=1)
    return Gains(
        ratio_interval(np.concatenate(together), np.concatenate(alone), resamples, seed),
        int((each[:, 0] < 1).sum()),
        sum(_loses_wholly(one, other, resamples, seed) for one, other in pairs),
        _worst(each[:, 0]),
        float(np.mean([_worst(row) for row in drawn])),
        len(pairs),
    )


def _loses_wholly(one: PerUser, other: PerUser, resamples: int, seed: int) -> bool:
    rows = np.random.default_rng(seed).integers(0, len(one), (resamples, len(one)))
    return bool(np.percentile((one - other)[rows].mean(1), (100 + LEVEL) / 2) < 0)


def _worst(ratios: PerUser) -> float:
    return float(np.sort(ratios)[: max(1, round(WORST * len(ratios)))].mean())


def _swapped_ratios(one: PerUser, other: PerUser, generator: np.random.Generator) -> PerUser:
    """Computes the ratio of means with each user's two values swapped at random, per draw.

    1 if both are 0.
    """
    swapped = generator.random((NULLS, len(one))) < 0.5
    first, second = np.where(swapped, other, one).sum(1), np.where(swapped, one, other).sum(1)
    tiny = np.finfo(float).tiny
    found: PerUser = np.where(first + second > 0, first / np.maximum(second, tiny), 1.0)
    return np.minimum(found, MOST_RATIO)
