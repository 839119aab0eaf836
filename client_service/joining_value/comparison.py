"""Compares the served model of a finished run with the silo's local model.

Figures have intervals over users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY, SESSION_LABELS, SESSION_PRIMARY, K
from client_service.evaluation.ranking import CHUNK, TopItems, list_hits, rank_by_scores, sample_validation_users
from client_service.evaluation.session_ranking import (
    ScoreItems,
    rank_prefixes,
    score_by_popularity,
    score_by_successors,
)
from client_service.joining_value.messages import ComparisonOut, FigureOut, GroupOut
from client_service.model_store.model_files import ServedItems
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.initial_filter import Filter
from client_service.models.ranker import Rows
from client_service.models.score_fusion import Recipe, build_fusion, select_codes
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.filter_search import (
    CLOSED_FORMS,
    best_filter,
    closed_form_tops,
    filter_scores,
    popularity_top,
)
from client_service.training.fusion_search import best_recipe
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.start_choice import Choice, load_choice, save_choice
from shared.method.graph import Float64, degrees
from shared.method.spectrum import Spectrum


@dataclass(frozen=True)
class LocalChoice:
    """Filter and fusion recipe chosen on a shard's validation items."""

    start: Filter
    recipe: Recipe


def choose_local(
    shard: Shard, spectrum: Spectrum, interrupt: Interrupt = NEVER, made: ClosedFormScorers | None = None
) -> LocalChoice:
    """Chooses start and fusion of the local model, as a run without common statistics does.

    made: scorers of the shard, where its own tables lack the texts.
    """
    start = best_filter(shard, spectrum, interrupt).choice
    return LocalChoice(start, best_recipe(shard, spectrum, start, interrupt, closed_forms=made))


def load_local_choice(
    shard: Shard, spectrum: Spectrum, cutoff: int, folder: Path, interrupt: Interrupt = NEVER
) -> LocalChoice:
    """Loads the kept choices of the local model, or computes and keeps them."""
    known = load_choice(shard, cutoff, folder)
    if known.start is not None and known.recipe is not None:
        return LocalChoice(known.start, known.recipe)
    chosen = choose_local(shard, spectrum, interrupt)
    save_choice(shard, cutoff, folder, Choice(start=chosen.start, recipe=chosen.recipe))
    return chosen


def rank_local_lists(shard: Shard, cutoff: int, folder: Path, interrupt: Interrupt = NEVER) -> TopItems:
    """Ranks the lists of the local model: the silo's own fused start.

    folder: where a run keeps what follows from the shard alone.
    """
    spectrum = cached_spectrum(shard, cutoff, folder)
    return rank_by_choice(shard, spectrum, load_local_choice(shard, spectrum, cutoff, folder, interrupt))


def rank_by_choice(
    shard: Shard, spectrum: Spectrum, chosen: LocalChoice, made: ClosedFormScorers | None = None
) -> TopItems:
    """Ranks lists by the chosen filter, fused with the chosen scorers.

    The lists are of the shard's own users. made: as in `choose_local`.
    """
    made = made or ClosedFormScorers.from_shard(shard, spectrum)
    fusion = build_fusion(chosen.recipe, shard.train, spectrum, closed_forms=made)
    base, codes = filter_scores(chosen.start, spectrum, shard.train), fusion.encode(shard.train)
    return rank_by_scores(lambda rows: fusion.add_to(base(rows), select_codes(codes, rows)))


EASE_SIDE = 4_000  # users or items, the fewer of both: 2 s on one core for each of five ridges
FEW_USERS = 50  # with fewer, intervals are too wide to judge by
NORMAL = 1.96  # standard errors: 95 in 100
ACTIVITY = ("users with few items", "users with a middling number", "users with many items")
FREQUENCY = ("rare items", "middling items", "popular items")
Lists = Mapping[str, Rows]
"""Lists (B, K) of the same users, by who made them."""


def compare_with_local(
    shard: Shard, served: ServedItems, cutoff: int, folder: Path, interrupt: Interrupt = NEVER
) -> ComparisonOut:
    """Compares the served model with the local one on test items, by groups of users.

    The gain on validation items is measured too. folder: where a run keeps what follows from the shard alone.
    """
    own = _baseline_tops(shard, cutoff, folder, interrupt)
    known = {**own, "federated": served.ranker.top}
    tops = {name: interrupt.check_before(top) for name, top in known.items() if top is not None}
    seen = sparse.csr_array(shard.train + shard.valid)
    users = np.flatnonzero(np.diff(shard.test.indptr) > 0)
    lists = {name: _rank_lists(top, seen, users) for name, top in tops.items()}
    counts = np.diff(shard.train.indptr)[users]
    by_user = _terciles(counts, np.ones(len(counts)))
    _, records = degrees(shard.train)
    by_item = _terciles(records, records)
    target = shard.test[users]
    all_items = np.ones(shard.train.shape[1], dtype=bool)
    groups = (
        _group("all users", lists, target, all_items),
        *(
            _group(name, _select_users(lists, by_user == third), target[by_user == third], all_items)
            for third, name in enumerate(ACTIVITY)
        ),
        *(_group(name, lists, target, by_item == third) for third, name in enumerate(FREQUENCY)),
    )
    return ComparisonOut(
        measure=LABELS[PRIMARY].key,
        users=len(users),
        few=len(users) < FEW_USERS,
        groups=tuple(group for group in groups if group is not None),
        validation_gain=_validation_gain(shard, tops),
        left_out=tuple(name for name, top in own.items() if top is None),
    )


def _baseline_tops(shard: Shard, cutoff: int, folder: Path, interrupt: Interrupt) -> dict[str, TopItems | None]:
    """Returns rankers of the silo's own baselines; None for one that takes too long."""
    spectrum = cached_spectrum(shard, cutoff, folder)
    chosen = load_local_choice(shard, spectrum, cutoff, folder, interrupt)
    closed = closed_form_tops(shard, spectrum, chosen.start, ease_side=EASE_SIDE, interrupt=interrupt)
    return {"popularity": popularity_top(shard), **closed, "alone": rank_by_choice(shard, spectrum, chosen)}


def mean_interval(values: Float64, floor: float | None = None) -> FigureOut:
    """Computes the mean with its 95 % interval by the normal approximation.

    The interval of a single user is as wide as possible.
    """
    mean = float(values.mean())
    error = NORMAL * float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else 1.0
    low, high = float(mean - error), float(mean + error)
    return FigureOut(mean=mean, low=low if floor is None else max(floor, low), high=min(1.0, high))


def paired_ratio(federated: Float64, alone: Float64) -> FigureOut | None:
    """Computes the ratio of two means over the same users, with its interval.

    The interval follows from the delta method on the logarithm. Each user's two values are paired, so that users who
    are easy or hard for both lists do not widen it.
    """
    ours, theirs = float(federated.mean()), float(alone.mean())
    if len(alone) < 2 or ours <= 0.0 or theirs <= 0.0:
        return None
    error = NORMAL * float((federated / ours - alone / theirs).std(ddof=1)) / np.sqrt(len(alone))
    ratio = ours / theirs
    return FigureOut(mean=ratio, low=ratio * float(np.exp(-error)), high=ratio * float(np.exp(error)))


def _validation_gain(shard: Shard, tops: Mapping[str, TopItems]) -> FigureOut | None:
    """Computes the gain over the local model on the validation items that chose the model."""
    users = sample_validation_users(shard.train.shape[0], seed=0)
    users = users[np.diff(shard.valid.indptr)[users] > 0]
    if len(users) == 0:
        return None
    target = shard.valid[users]
    values = {name: _per_user(_rank_lists(tops[name], shard.train, users), target) for name in ("alone", "federated")}
    return mean_interval(values["federated"] - values["alone"])


def _group(name: str, lists: Lists, target: sparse.csr_array, items: NDArray[np.bool_]) -> GroupOut | None:
    """Measures the users who have held-out items among these; None without such users."""
    wanted = _select_columns(target, items)
    has = np.diff(wanted.indptr) > 0
    if not has.any():
        return None
    values = {who: _per_user(ranked[has], wanted[has]) for who, ranked in lists.items()}
    figures = {who: mean_interval(of_users, 0.0) for who, of_users in values.items()}
    floors = {who: figures.pop(who) for who in CLOSED_FORMS if who in figures}
    gain = mean_interval(values["federated"] - values["alone"])
    ratio = paired_ratio(values["federated"], values["alone"])
    return GroupOut(name=name, users=int(has.sum()), **figures, floors=floors, gain=gain, ratio=ratio)


def _per_user(ranked: Rows, target: sparse.csr_array) -> Float64:
    """Computes the primary measure of each user; all of them have a target item."""
    return METRICS[PRIMARY].per_user(list_hits(ranked, target), np.diff(target.indptr))


def _rank_lists(top: TopItems, seen: sparse.csr_array, users: Rows) -> Rows:
    """Ranks the lists of these users, (B, K)."""
    if len(users) == 0:
        return np.zeros((0, K), dtype=np.int64)
    chunks = np.split(users, np.arange(CHUNK, len(users), CHUNK))
    return np.concatenate([top(chunk, seen[chunk], K) for chunk in chunks])


def _select_users(lists: Lists, chosen: NDArray[np.bool_]) -> Lists:
    return {who: ranked[chosen] for who, ranked in lists.items()}


def _terciles(values: Float64, weights: Float64) -> NDArray[np.int64]:
    """Splits values into thirds by weight: 0 smallest, 1 middle, 2 largest.

    Each third holds about a third of the weight; equal values stay together.
    """
    levels, place = np.unique(values, return_inverse=True)
    weight = np.bincount(place, weights=weights, minlength=len(levels))
    before = (np.cumsum(weight) - weight / 2.0) / max(float(weight.sum()), 1.0)
    return np.minimum((before * 3).astype(np.int64), 2)[place]


def _select_columns(pairs: sparse.csr_array, columns: NDArray[np.bool_]) -> sparse.csr_array:
    """Keeps the pairs in these columns (N,); the shape stays."""
    kept = columns[pairs.indices]
    rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))[kept]
    return sparse.csr_array((pairs.data[kept], (rows, pairs.indices[kept])), shape=pairs.shape)


DEPTH = 20
GAIN_BY = 2000  # validation examples, spread evenly
LENGTHS = (("all visits", 1, 1 << 30), ("after the first click", 1, 1), ("later in a visit", 2, 1 << 30))


def compare_sessions_with_local(
    shard: SessionShard,
    score: ScoreItems,
    interrupt: Interrupt = NEVER,
    alone: ScoreItems | None = None,
    floors: Mapping[str, ScoreItems] = MappingProxyType({}),
) -> ComparisonOut:
    """Compares the served model of sessions with the silo's own counts on test examples.

    MRR@20 over all test examples and by the length of the visit, and the gain on validation examples.

    alone: scores by the silo's own sessions; None: counts of what followed the last click, because no local network
    is trained for this. floors: further baselines without training.
    """
    clicks, starts = shard.split_sessions(TRAIN)
    items = len(shard.item_ids)
    successors = score_by_successors(clicks, starts, items)
    ways = {"popularity": score_by_popularity(clicks, items), "alone": alone or successors, "federated": score}
    ways |= {"own successors": successors, **floors} if alone else floors
    values = {name: reciprocal_ranks(rank_prefixes(way, shard.test, items, interrupt)) for name, way in ways.items()}
    lengths = shard.test.lengths
    chosen = ((name, (lengths >= least) & (lengths <= most)) for name, least, most in LENGTHS)
    groups = tuple(_session_group(name, values, inside) for name, inside in chosen if inside.any())
    return ComparisonOut(
        measure=SESSION_LABELS[SESSION_PRIMARY].key,
        users=len(lengths),
        few=len(lengths) < FEW_USERS,
        groups=groups,
        validation_gain=_session_gain(shard, ways["federated"], ways["alone"], interrupt),
    )


def _session_gain(
    shard: SessionShard, federated: ScoreItems, alone: ScoreItems, interrupt: Interrupt
) -> FigureOut | None:
    """Computes the gain over the local scores on validation examples."""
    if not len(shard.valid):
        return None
    examples = shard.valid.select(np.arange(0, len(shard.valid), -(-len(shard.valid) // GAIN_BY)))
    ours, theirs = (
        reciprocal_ranks(rank_prefixes(way, examples, len(shard.item_ids), interrupt)) for way in (federated, alone)
    )
    return mean_interval(ours - theirs)


def reciprocal_ranks(ranks: NDArray[np.int64]) -> Float64:
    """Computes reciprocal ranks; 0 beyond DEPTH and for a miss."""
    return np.where((ranks > 0) & (ranks <= DEPTH), 1.0 / np.maximum(ranks, 1), 0.0)


def _session_group(name: str, values: dict[str, Float64], inside: NDArray[np.bool_]) -> GroupOut:
    figures = {who: mean_interval(found[inside], 0.0) for who, found in values.items()}
    floors = {who: figures.pop(who) for who in values if who not in ("popularity", "alone", "federated")}
    gain = mean_interval(values["federated"][inside] - values["alone"][inside])
    ratio = paired_ratio(values["federated"][inside], values["alone"][inside])
    return GroupOut(name=name, users=int(inside.sum()), **figures, floors=floors, gain=gain, ratio=ratio)
