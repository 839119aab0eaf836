"""A silo cut by users into smaller ones of its own, each held against those that they make together.

Two halves of a silo are two silos that sell the same items. What one of them gains by training on both is what joining
was worth to it; the same with quarters and eighths says how that gain falls as silos grow. Texts of items take part, as
they do in a run: those of a part alone, and those of all. What the smallest parts gain by the content sums of all of
them, and by nothing else, is what silos without a common item would share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard, shard_of_matrices
from client_service.evaluation.metrics import METRICS, PRIMARY, K
from client_service.evaluation.ranking import CHUNK, TopItems, list_hits
from client_service.joining_value.comparison import LocalChoice, choose_local, rank_by_choice
from client_service.models.closed_form.content import ContentSums, add_constant, known_features, sum_content
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.ranker import Rows
from shared.method.parameters import Float32
from shared.method.spectrum import low_spectrum

MOST_USERS = 1000  # of a larger silo so many are drawn, which bounds the time of a draw
FEWEST_USERS = 24  # of the smallest part
MOST_HALVINGS = 3

Values = NDArray[np.float64]
"""The primary measure of each user of the silo, (M,); NaN for a user who is not judged."""
Mask = NDArray[np.bool_]
Observe = Callable[[str], None]
"""Called after each training with what was trained."""


@dataclass(frozen=True)
class Gain:
    """What `times` small silos of `users` users gain together: figures of the same users and items, alone and so."""

    users: int
    times: int
    alone: Values
    together: Values


@dataclass(frozen=True)
class CutTrial:
    """users: of the largest part; whole: what it gives its own users. text: what the smallest parts gain by their
    content sums alone; None where nothing is known of the items."""

    users: int
    whole: Values
    gains: tuple[Gain, ...]
    text: Gain | None = None


@dataclass(frozen=True)
class SubSilo:
    """Some of the users, the items that these have, and the fused start of both; `lists` are of the part's own rows.

    features: of these items; None where nothing is known of them.
    """

    users: Rows
    items: Rows
    shard: Shard
    lists: TopItems
    features: Float32 | None = None


def count_halvings(users: int) -> int:
    """How often a silo of so many users is cut in two."""
    halved = math.log2(max(users, FEWEST_USERS) / FEWEST_USERS)
    return min(MOST_HALVINGS, math.floor(halved))


def trainings(users: int) -> int:
    """Of one draw."""
    levels = count_halvings(min(users, MOST_USERS)) + 1
    return (1 << levels) - 1


def measure_gains(shard: Shard, number: int, cutoff: int, observe: Observe) -> CutTrial:
    """One draw of users, cut into halves, quarters and so on.

    Half of the users are judged, the validation items of the others make the choices. The next draw swaps them.
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
    """The users in 2^halved parts, in half as many and so on to all of them. Two neighbours make one of the next."""
    cuts = [np.array_split(users, 2**halved)]
    for _ in range(halved):
        finer = cuts[-1]
        cuts.append([np.concatenate(pair) for pair in zip(finer[::2], finer[1::2], strict=True)])
    return cuts


def _train_level(
    shard: Shard, cut: Sequence[Rows], choosing: Mask, cutoff: int, observe: Observe
) -> tuple[SubSilo, ...]:
    """Parts of one size. The first one's validation items choose for all of them, which saves most of the time."""
    parts: list[SubSilo] = []
    chosen: LocalChoice | None = None
    for rows in map(np.sort, cut):
        part = _part_shard(shard, rows, choosing)
        spectrum = low_spectrum(part.train, cutoff)
        items = np.flatnonzero(np.bincount(shard.train[rows].indices, minlength=shard.train.shape[1]))
        told = known_features(shard)
        features = None if told is None else told.values[items]
        made = ClosedFormScorers(part.train, spectrum, features)
        chosen = chosen or choose_local(part, spectrum, made=made)
        parts.append(SubSilo(rows, items, part, rank_by_choice(part, spectrum, chosen, made), features))
        observe(f"{len(rows)} users")
    return tuple(parts)


def _gain_by_text(shard: Shard, parts: Sequence[SubSilo], judged: Mask, cutoff: int) -> Gain | None:
    """What the parts gain by the content sums of the others, each with lists of its own items by its own users."""
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
        _only(np.array([_measure_users(shard, part, model, judged) for part, model in zip(parts, models, strict=True)]))
        for models in (parts, joined)
    )
    return Gain(round(sum(len(part.users) for part in parts) / len(parts)), len(parts), alone, together)


def _part_shard(shard: Shard, rows: Rows, choosing: Mask) -> Shard:
    """The shard of these users and the items that they have, with the validation items of those who choose alone."""
    train = shard.train[rows]
    items = np.flatnonzero(np.bincount(train.indices, minlength=train.shape[1]))
    keep = sparse.diags_array(choosing[rows].astype(np.float64))
    valid = sparse.csr_array(keep @ shard.valid[rows])[:, items]
    valid.eliminate_zeros()
    nothing = sparse.csr_array((len(rows), len(items)))
    matrices = (train[:, items], valid, nothing)
    return shard_of_matrices(shard.name, _numbers(len(rows)), _numbers(len(items)), matrices)


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
        alone=_only(alone),
        together=_only(together),
    )


def _only(values: NDArray[np.float64]) -> Values:
    """Of each column its one value that is not NaN, if there is one."""
    judged = ~np.isnan(values)
    found: Values = np.where(judged.any(0), np.where(judged, values, 0.0).sum(0), np.nan)
    return found


def _measure_users(shard: Shard, part: SubSilo, model: SubSilo, judged: Mask) -> Values:
    """Of a part's judged users, on the part's items alone, by the lists of a part that holds it."""
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
    """The pairs with these items; the shape stays."""
    kept = np.isin(pairs.indices, items)
    rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))[kept]
    return sparse.csr_array((pairs.data[kept], (rows, pairs.indices[kept])), shape=pairs.shape)


def _lists(model: SubSilo, users: Rows, items: Rows) -> Rows:
    """Lists (B, K) of the model for these users, out of these items that they do not have, in the silo's numbers."""
    rows, hidden = np.searchsorted(model.users, users), np.flatnonzero(~np.isin(model.items, items))
    chunks = np.split(rows, np.arange(CHUNK, len(rows), CHUNK))
    found = np.concatenate([model.lists(chunk, _hide(model.shard.train[chunk], hidden), K) for chunk in chunks])
    return np.where(found < 0, -1, model.items[found])


def _hide(seen: sparse.csr_array, columns: Rows) -> sparse.csr_array:
    """The same pairs and, in each row, these columns."""
    count = seen.shape[0]
    ends = np.arange(count + 1) * len(columns)
    hidden = sparse.csr_array((np.ones(count * len(columns)), np.tile(columns, count), ends), shape=seen.shape)
    return sparse.csr_array(seen + hidden)
