"""Cuts a silo into smaller ones and measures how much they gain together.

Two halves of a silo are two silos with the same items. What one half gains by training on both is the gain of joining
for it; quarters and eighths tell how that gain falls as silos grow. Texts of items are used as in a run: those of a
part for itself, and those of all parts together. What the smallest parts gain by the content sums of all parts alone
is what silos without a common item would share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.metrics import METRICS, PRIMARY, K
from client_service.evaluation.ranking import CHUNK, TopItems, list_hits
from client_service.joining_value.comparison import LocalChoice, choose_local, rank_by_choice
from client_service.models.closed_form.content import ContentSums, add_constant, find_item_features, sum_content
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.ranker import Rows
from shared.method.parameters import Float32
from shared.method.spectrum import low_spectrum

MOST_USERS = 1000  # users who are drawn from a larger silo, which bounds the time of a draw
FEWEST_USERS = 24  # of the smallest part
MOST_HALVINGS = 3

Values = NDArray[np.float64]
"""The primary measure of each user of the silo, (M,); NaN for a user who is not judged."""
Mask = NDArray[np.bool_]
Observe = Callable[[str], None]
"""Called after each training, with a description of the trained part."""


@dataclass(frozen=True)
class Gain:
    """Gain of `times` small silos of `users` users that train together.

    The figures alone and together are of the same users and items.
    """

    users: int
    times: int
    alone: Values
    together: Values


@dataclass(frozen=True)
class CutTrial:
    """Gains of one random cut of the silo.

    users: of the largest part. whole: figures of its own users. text: gain of the smallest parts by content sums
    alone; None without texts or attributes of items.
    """

    users: int
    whole: Values
    gains: tuple[Gain, ...]
    text: Gain | None = None


@dataclass(frozen=True)
class SubSilo:
    """Part of the users with their items, and lists by the fused start of both.

    `lists` are of the part's own rows. features: of these items; None without texts or attributes.
    """

    users: Rows
    items: Rows
    shard: Shard
    lists: TopItems
    features: Float32 | None = None


def count_halvings(users: int) -> int:
    """Computes how often a silo of this size is cut in half."""
    halved = math.log2(max(users, FEWEST_USERS) / FEWEST_USERS)
    return min(MOST_HALVINGS, math.floor(halved))


def count_trainings(users: int) -> int:
    """Computes the number of trainings of one draw."""
    levels = count_halvings(min(users, MOST_USERS)) + 1
    return (1 << levels) - 1


def measure_gains(shard: Shard, number: int, cutoff: int, observe: Observe) -> CutTrial:
    """Measures the gains of one random cut into halves, quarters and so on.

    Half of the users are judged; the validation items of the others make the choices. The next draw swaps them.
    """
    users = shard.train.shape[0]
    judged = (np.random.default_rng(number // 2).permutation(users) % 2 == 0) == (number % 2 == 0)
    drawn = np.random.default_rng([number, 1]).permutation(users)[:MOST_USERS]
    cuts = cut_nested(drawn, count_halvings(len(drawn)))
    levels = [_train_level(shard, cut, ~judged, cutoff, observe) for cut in cuts]
    whole = _measure_users(shard, levels[-1][0], levels[-1][0], judged)
    pairs = [(low, high) for low in range(len(levels)) for high in range(low + 1, len(levels))]
    gains = tuple(_gain(shard, levels, pair, judged) for pair in pairs)
    return CutTrial(len(drawn), whole, gains, _gain_by_text(shard, levels[0], judged, cutoff))


def cut_nested(users: Rows, halved: int) -> Sequence[Sequence[Rows]]:
    """Cuts the users into 2^halved parts, and pairs them up to the whole.

    Two neighbouring parts make one part of the next level.
    """
    cuts = [np.array_split(users, 2**halved)]
    for _ in range(halved):
        finer = cuts[-1]
        cuts.append([np.concatenate(pair) for pair in zip(finer[::2], finer[1::2], strict=True)])
    return cuts


def _train_level(
    shard: Shard, cut: Sequence[Rows], choosing: Mask, cutoff: int, observe: Observe
) -> tuple[SubSilo, ...]:
    """Trains all parts of one size; the first part's validation items choose for all.

    That saves most of the time.
    """
    parts: list[SubSilo] = []
    chosen: LocalChoice | None = None
    for rows in map(np.sort, cut):
        part = _part_shard(shard, rows, choosing)
        spectrum = low_spectrum(part.train, cutoff)
        items = np.flatnonzero(np.bincount(shard.train[rows].indices, minlength=shard.train.shape[1]))
        encoded = find_item_features(shard)
        features = None if encoded is None else encoded.values[items]
        made = ClosedFormScorers(part.train, spectrum, features)
        chosen = chosen or choose_local(part, spectrum, made=made)
        parts.append(SubSilo(rows, items, part, rank_by_choice(part, spectrum, chosen, made), features))
        observe(f"{len(rows)} users")
    return tuple(parts)


def _gain_by_text(shard: Shard, parts: Sequence[SubSilo], judged: Mask, cutoff: int) -> Gain | None:
    """Measures the gain of parts by the content sums of the other parts.

    Each part ranks its own items for its own users.
    """
    if len(parts) < 2 or any(part.features is None for part in parts):
        return None
    tables = [add_constant(part.features) for part in parts if part.features is not None]
    sums = [sum_content(part.shard.train, table) for part, table in zip(parts, tables, strict=True)]
    joined, chosen = list[SubSilo](), None
    for number, part in enumerate(parts):
        others = reduce(ContentSums.add, (one for at, one in enumerate(sums) if at != number))
        spectrum = low_spectrum(part.shard.train, cutoff)
        made = ClosedFormScorers(part.shard.train, spectrum, part.features, others)
        chosen = chosen or choose_local(part.shard, spectrum, made=made)
        joined.append(replace(part, lists=rank_by_choice(part.shard, spectrum, chosen, made)))
    alone, together = (
        _merge_parts(
            np.array([_measure_users(shard, part, model, judged) for part, model in zip(parts, models, strict=True)])
        )
        for models in (parts, joined)
    )
    return Gain(round(sum(len(part.users) for part in parts) / len(parts)), len(parts), alone, together)


def _part_shard(shard: Shard, rows: Rows, choosing: Mask) -> Shard:
    """Builds the shard of these users and their items.

    It has the validation items of the choosing users alone.
    """
    train = shard.train[rows]
    items = np.flatnonzero(np.bincount(train.indices, minlength=train.shape[1]))
    keep = sparse.diags_array(choosing[rows].astype(np.float64))
    valid = sparse.csr_array(keep @ shard.valid[rows])[:, items]
    valid.eliminate_zeros()
    nothing = sparse.csr_array((len(rows), len(items)))
    matrices = (train[:, items], valid, nothing)
    return build_shard_from_matrices(shard.name, _numbers(len(rows)), _numbers(len(items)), matrices)


def _numbers(count: int) -> Sequence[str]:
    return [f"{number:09d}" for number in range(count)]


def _gain(shard: Shard, levels: Sequence[Sequence[SubSilo]], pair: tuple[int, int], judged: Mask) -> Gain:
    low, high = pair
    small = levels[low]
    whole = [levels[high][number >> (high - low)] for number in range(len(small))]
    alone = np.array([_measure_users(shard, part, part, judged) for part in small])
    together = np.array(
        [_measure_users(shard, part, larger, judged) for part, larger in zip(small, whole, strict=True)]
    )
    return Gain(
        users=round(sum(len(part.users) for part in small) / len(small)),
        times=2 ** (high - low),
        alone=_merge_parts(alone),
        together=_merge_parts(together),
    )


def _merge_parts(values: NDArray[np.float64]) -> Values:
    """Returns each column's only value that is not NaN, or NaN."""
    judged = ~np.isnan(values)
    found: Values = np.where(judged.any(0), np.where(judged, values, 0.0).sum(0), np.nan)
    return found


def _measure_users(shard: Shard, part: SubSilo, model: SubSilo, judged: Mask) -> Values:
    """Measures a part's judged users on its items, by a larger part's lists."""
    values = np.full(shard.train.shape[0], np.nan)
    users = part.users[judged[part.users]]
    target = _select_items(shard.valid[users], part.items)
    has = np.diff(target.indptr) > 0
    if has.any():
        users, target = users[has], target[np.flatnonzero(has)]
        hits = list_hits(_lists(model, users, part.items), target)
        values[users] = METRICS[PRIMARY].per_user(hits, np.diff(target.indptr))
    return values


def _select_items(pairs: sparse.csr_array, items: Rows) -> sparse.csr_array:
    """Keeps the pairs with these items; the shape stays."""
    kept = np.isin(pairs.indices, items)
    rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))[kept]
    return sparse.csr_array((pairs.data[kept], (rows, pairs.indices[kept])), shape=pairs.shape)


def _lists(model: SubSilo, users: Rows, items: Rows) -> Rows:
    """Ranks these items for these users by a model, (B, K).

    Items have the silo's numbers; those that a user has are left out.
    """
    rows, hidden = np.searchsorted(model.users, users), np.flatnonzero(~np.isin(model.items, items))
    chunks = np.split(rows, np.arange(CHUNK, len(rows), CHUNK))
    found = np.concatenate([model.lists(chunk, _add_seen(model.shard.train[chunk], hidden), K) for chunk in chunks])
    return np.where(found < 0, -1, model.items[found])


def _add_seen(seen: sparse.csr_array, columns: Rows) -> sparse.csr_array:
    """Adds these columns to each row, so that rankers leave them out."""
    count = seen.shape[0]
    ends = np.arange(count + 1) * len(columns)
    hidden = sparse.csr_array((np.ones(count * len(columns)), np.tile(columns, count), ends), shape=seen.shape)
    return sparse.csr_array(seen + hidden)
