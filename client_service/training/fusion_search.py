"""Chooses by validation which closed forms a model's score is fused with, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from client_service.data.interactions import Shard
from client_service.evaluation.metrics import PerUser
from client_service.evaluation.ranking import TopItems, rank_by_scores
from client_service.models.closed_form.ease import OWN_SIDE
from client_service.models.closed_form.registry import PARTS, ClosedFormScorers
from client_service.models.closed_form.scorer_part import LOUDNESSES, Scorer, ScorerPart, TrainingGraph
from client_service.models.initial_filter import Filter
from client_service.models.ranker import Rows
from client_service.models.score_fusion import (
    ChosenPart,
    Recipe,
    build_fusion,
    select_codes,
    standard_scores,
    standardise,
)
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.filter_search import filter_scores
from client_service.training.recipe_evaluator import (
    ERRORS,
    Blends,
    RecipeEvaluator,
    Score,
    UncertainRankError,
    take_rows,
)
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

KEPT_ITEMS = 8_000  # least items from which only those that may be among the first are ranked


PRIOR_USERS = 100  # validation users at which their choice and the usual weights count alike
OWN_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)  # of the silo's own parts beside those of a common basis
USUAL_SHARE, SHARE_USERS = 0.15, 50  # without validation users; number of them that weigh as much
# Usual gain of sums that cover everything, as a share of a silo's own quality, and how many of its validation users
# count as much as that; chosen on amazon-video, retailrocket, yelp2018-13k and lastfm, in silos of 30 users on.
EXPECTED_GAIN, GAIN_USERS = 0.3, 20
LEAST_COMMON = 0.05  # weight of the common parts, below which they would blur the silo's own and add nothing
USERS_A_DIRECTION = 8  # of a silo, whose own parts know as much as one direction of all silos' sums
LEAST_WEIGHT = 0.02  # weight of a part that the search does not begin with, below which it is left out
LEAST_BASE = 0.02  # of the base score, over which the other weights are divided
SURE_USERS = 200  # validation users from which on no single part may rank better by one standard error than the sum
SOME_USERS, MORE_ERRORS = 30, 2.0  # and with fewer users than that, but at least SOME_USERS

BASE = "base"
BASE_WEIGHT = 1.0  # without validation users, as `ScorerPart.weight` is of the other parts
Weights = Mapping[str, float]
"""Weight of each part's standardised scores; they sum to 1."""


@dataclass(frozen=True)
class OwnParts:
    """Scorers of a silo's own graph with their settings, and scores (users, N) by name."""

    settings: Mapping[str, Any]
    scores: Mapping[str, Float32]

    def sum(self, weights: Weights, places: slice = slice(None)) -> Float32:
        """Computes the weighted sum of the scores for the users at these places."""
        terms = (np.float32(weight) * self.scores[name][places] for name, weight in weights.items())
        total: Float32 = next(terms)
        for term in terms:
            total += term
        return total


def best_recipe(
    shard: Shard,
    spectrum: Spectrum,
    chosen: Filter,
    interrupt: Interrupt = NEVER,
    common: Sequence[Scorer] = (),
    start_spectrum: Spectrum | None = None,
    directions: int | None = None,
    covered_share: float = 1.0,
    closed_forms: ClosedFormScorers | None = None,
) -> Recipe:
    """Chooses the settings and weights of all fused scorers by validation.

    start_spectrum: the frequencies of all silos, where the model begins in them; the base score is a common part then.
    directions: of the common basis, None for all. covered_share: see `default_share`. closed_forms: the scorers of the
    graph; those chosen are kept in it for `build_fusion`.
    """
    evaluator, closed_forms = (
        RecipeEvaluator(shard, interrupt),
        closed_forms or ClosedFormScorers.from_shard(shard, spectrum),
    )
    scores_of = filter_scores(chosen, start_spectrum or spectrum, shard.train)
    if not common and start_spectrum is None and evaluator.count and _can_keep_best(shard):
        try:
            narrow, parts = _best_of_own_parts(evaluator, shard, closed_forms, scores_of)
            return _make_recipe(parts, _choose_weights(narrow, parts, closed_forms.graph), 1.0, 0, base_is_common=False)
        except UncertainRankError:  # rare: very many items have nearly the same score
            pass
    base = standardise(scores_of(evaluator.users))
    parts = _own_parts(evaluator, closed_forms, None if start_spectrum else base)
    weights = _choose_weights(evaluator, parts, closed_forms.graph)
    theirs = [*(evaluator.score_part(one) for one in common), *([base] if start_spectrum else [])]
    prior = default_share(shard.train.shape[0], directions, covered_share)
    share = _own_share(evaluator, parts.sum(weights), theirs, prior, covered_share**2) if theirs else 1.0
    return _make_recipe(parts, weights, share, len(theirs), base_is_common=start_spectrum is not None)


def fused_top(
    shard: Shard,
    spectrum: Spectrum,
    chosen: Filter,
    common: Sequence[Scorer] = (),
    directions: int | None = None,
    covered_share: float = 1.0,
    closed_forms: ClosedFormScorers | None = None,
) -> TopItems:
    """Computes lists of the filter and its best fusion, which are served before any training.

    closed_forms: the graph's scorers; None: those of the shard alone.
    """
    closed_forms = closed_forms or ClosedFormScorers.from_shard(shard, spectrum)
    recipe = best_recipe(
        shard,
        spectrum,
        chosen,
        common=common,
        directions=directions,
        covered_share=covered_share,
        closed_forms=closed_forms,
    )
    fusion = build_fusion(recipe, shard.train, spectrum, common, closed_forms)
    base, codes = filter_scores(chosen, spectrum, shard.train), fusion.encode(shard.train)
    return rank_by_scores(lambda rows: fusion.add_to(base(rows), select_codes(codes, rows)))


def _choose_weights(evaluator: RecipeEvaluator, parts: OwnParts, graph: TrainingGraph) -> Weights:
    """Chooses the weights of the silo's own parts by validation.

    With few validation users they are drawn towards the usual weights.
    """
    known = {name: PARTS[name].usual_weight(graph, setting) for name, setting in parts.settings.items()}
    usual = _normalise({name: known.get(name, BASE_WEIGHT) for name in parts.scores})
    weights = _mix(_best_weights(evaluator, parts, usual), usual, evaluator.count / (evaluator.count + PRIOR_USERS))
    return _prefer_single_part(evaluator, parts, _drop_light_parts(weights))


def _can_keep_best(shard: Shard) -> bool:
    """Tells whether only the best items of each scorer need be kept.

    That takes many items, and so few settings of every scorer that all fit into memory together.
    """
    return shard.train.shape[1] >= KEPT_ITEMS and min(shard.train.shape) > OWN_SIDE


def _best_of_own_parts(
    evaluator: RecipeEvaluator, shard: Shard, closed_forms: ClosedFormScorers, base: Callable[[Rows], Float32]
) -> tuple[RecipeEvaluator, OwnParts]:
    """Makes the own parts with scores of the kept items alone.

    Otherwise like `_own_parts`: only items that may be among the first are kept. Returns the evaluator that ranks them
    too.
    """
    tried = {name: options for name, part in PARTS.items() if (options := part.settings(closed_forms.graph))}
    scorers = {name: closed_forms.make_each(name, settings) for name, settings in tried.items()}

    def scores(users: Rows) -> Iterator[Float32]:
        yield base(users)
        baskets = shard.train[users].astype(np.float32)
        for name, some in scorers.items():
            together = PARTS[name].score_each
            yield from (standard_scores(one, baskets) for one in some) if together is None else together(some, baskets)

    narrow, (first, *further) = evaluator.keep_best(scores, 1 + sum(map(len, tried.values())))
    found, settings = {BASE: first}, {}
    remaining = iter(further)
    for name, some in tried.items():
        each = {setting: next(remaining) for setting in some}
        usual, *rest = _usual_first(PARTS[name], some)
        settings[name] = narrow.choose_surely(
            (usual, take_rows(each[usual])), ((one, take_rows(each[one])) for one in rest), PARTS[name].errors
        )
        found[name] = each[settings[name]]
        closed_forms.keep(name, settings[name], scorers[name][some.index(settings[name])])
    return narrow, OwnParts(settings, found)


def _usual_first(part: ScorerPart, settings: Sequence[Any]) -> tuple[Any, ...]:
    usual = part.usual if part.usual in settings else settings[0]
    return usual, *(one for one in settings if one != usual)


def _own_parts(evaluator: RecipeEvaluator, closed_forms: ClosedFormScorers, base: Float32 | None) -> OwnParts:
    """Scores every part that fits with each of its settings, and chooses one.

    base: scores of the base path, where it is the silo's own.
    """
    scores, settings = ({} if base is None else {BASE: base}), {}
    for name, part in PARTS.items():
        if tried := part.settings(closed_forms.graph):
            chosen, scores[name] = _choose_setting(evaluator, closed_forms, part, tried)
            settings[name] = chosen.setting
            closed_forms.keep(name, *chosen)
    return OwnParts(settings, scores)


class _ScoredSetting(NamedTuple):
    """A setting, and the scorer that it gives."""

    setting: Any
    scorer: Scorer


def _choose_setting(
    evaluator: RecipeEvaluator, closed_forms: ClosedFormScorers, part: ScorerPart, settings: Sequence[Any]
) -> tuple[_ScoredSetting, Float32]:
    """Chooses the setting of a part; returns the scorer and its scores too."""
    usual, *others = _usual_first(part, settings)
    each = _score_settings(evaluator, closed_forms, part, settings) if part.score_each else {}

    def scored(setting: Any) -> tuple[_ScoredSetting, Float32]:
        if setting in each:
            return each[setting]
        scorer = closed_forms.make(part.name, setting)
        return _ScoredSetting(setting, scorer), evaluator.score_part(scorer)

    def with_scores(setting: Any) -> tuple[tuple[_ScoredSetting, Float32], Score]:
        found = scored(setting)
        return found, take_rows(found[1])

    return (
        evaluator.choose_surely(with_scores(usual), map(with_scores, others), part.errors) if others else scored(usual)
    )


def _score_settings(
    evaluator: RecipeEvaluator, closed_forms: ClosedFormScorers, part: ScorerPart, settings: Sequence[Any]
) -> dict[Any, tuple[_ScoredSetting, Float32]]:
    """Scores all settings of a part in one pass."""
    score_each, scorers = part.score_each, closed_forms.make_each(part.name, settings)
    assert score_each is not None
    found = evaluator.score_parts(lambda baskets: score_each(scorers, baskets), len(scorers))
    pairs = zip(settings, scorers, found, strict=True)
    return {setting: (_ScoredSetting(setting, scorer), scores) for setting, scorer, scores in pairs}


def _best_weights(evaluator: RecipeEvaluator, parts: OwnParts, usual: Weights) -> Weights:
    """Chooses the better of two searches by validation.

    One starts from the first part, the base score, the other from the usual weights.
    """
    first, *others = parts.scores
    from_first = _search(evaluator, parts, {first: 1.0}, [name for name in others if PARTS[name].from_base])
    from_usual = _search(evaluator, parts, usual, [*others, first])
    both = (from_first, from_usual)
    return evaluator.choose_best(both, lambda places: (parts.sum(weights, places) for weights in both))


def _search(evaluator: RecipeEvaluator, parts: OwnParts, weights: Weights, names: Sequence[str]) -> Weights:
    """Searches the weights part by part.

    Each part gets the loudness beside the sum of the others that validation prefers. names: of the parts, in their
    order.
    """
    for name in names:
        others = _normalise({other: weight for other, weight in weights.items() if other != name})
        if not others:
            continue
        options = PARTS[name].loudnesses if name in PARTS else LOUDNESSES
        loudness = evaluator.choose_best(options, partial(_blend_part, parts, others, name, options))
        weights = _normalise({**others, name: loudness})
    return weights


def _blend_part(
    parts: OwnParts, others: Weights, name: str, options: Sequence[float], places: slice
) -> Iterator[Float32]:
    """Yields the scores of the other parts plus one part at each loudness."""
    total, part = parts.sum(others, places), parts.scores[name][places]
    return _each_blend(total, part, [(1.0, value) for value in options])


def _each_blend(first: Float32, second: Float32, weights: Iterable[tuple[float, float]]) -> Iterator[Float32]:
    """Yields a weighted sum of two score matrices for each pair of weights.

    a first + b second for each (a, b), in one array that is reused.
    """
    found, other = np.empty_like(first), np.empty_like(second)
    for one, two in weights:
        np.multiply(first, np.float32(one), out=found)
        found += np.multiply(second, np.float32(two), out=other)
        yield found


def _normalise(weights: Weights) -> dict[str, float]:
    """Scales weights to the sum 1, and drops parts of weight 0."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items() if weight > 0}


def _mix(first: Weights, second: Weights, share: float) -> Weights:
    """Mixes two sets of weights: `share` of the first, the rest of the second."""
    names = dict.fromkeys([*first, *second])
    return {name: share * first.get(name, 0.0) + (1.0 - share) * second.get(name, 0.0) for name in names}


def _drop_light_parts(weights: Weights) -> Weights:
    """Drops optional parts of small weight, which cost time in each answer."""
    heard = {
        name: weight
        for name, weight in weights.items()
        if weight >= LEAST_WEIGHT or name not in PARTS or PARTS[name].from_base
    }
    return weights if len(heard) == len(weights) else _normalise(heard)


def _prefer_single_part(evaluator: RecipeEvaluator, parts: OwnParts, weights: Weights) -> Weights:
    """Returns a single part where the sum ranks surely worse than it.

    The fewer users, the clearer the difference must be.
    """
    if evaluator.count < SOME_USERS:
        return weights
    alone = (({name: 1.0}, take_rows(scores)) for name, scores in parts.scores.items())
    errors = ERRORS if evaluator.count >= SURE_USERS else MORE_ERRORS
    together: tuple[Weights, Score] = weights, partial(parts.sum, weights)
    return evaluator.choose_surely(together, alone, errors)


def default_share(users: int, directions: int | None = None, covered_share: float = 1.0) -> float:
    """Computes the weight of the own parts beside the common ones without validation users.

    It grows with the users for each of the `directions` in the sums, few in noisy ones. covered_share:
    share of the silo's training pairs whose items other silos have too. A score follows from pairs of items, of which
    the sums know covered_share^2; of the rest the own parts know more.
    """
    narrow = 0.0 if directions is None else users / (users + USERS_A_DIRECTION * directions)
    return max(USUAL_SHARE, narrow) * covered_share**2 + (1.0 - covered_share**2)


def _own_share(
    evaluator: RecipeEvaluator, own: Float32, common: Sequence[Float32], usual: float, trust: float
) -> float:
    """Chooses the weight of the silo's own parts from validation and the usual share.

    It is beside the mean of the common parts; 1 if hardly anything would be common, or the silo is expected to be
    better off alone. trust: weight of a validation user, as a share of one in a federation whose sums cover everything:
    where they cover a few items, popular ones, a few users prefer them by chance.
    """
    ours = standardise(own)
    theirs = standardise(np.mean(common, axis=0))

    def blends(shares: Sequence[float]) -> Blends:
        return lambda places: _each_blend(ours[places], theirs[places], [(share, 1 - share) for share in shares])

    preferred, count = evaluator.choose_best(OWN_SHARES, blends(OWN_SHARES)), evaluator.count * trust
    share = (count * preferred + SHARE_USERS * usual) / (count + SHARE_USERS)
    if share > 1.0 - LEAST_COMMON:
        return 1.0
    if not evaluator.count:
        return share
    together, alone = evaluator.measure_each(blends((share, 1.0)))
    return share if _expects_gain(together, alone, trust) else 1.0


def _expects_gain(together: PerUser, alone: PerUser, trust: float) -> bool:
    """Tells whether the expected mean gain is at least 0.

    The prior is the usual gain of such sums. A loss over few users is mostly chance: the more the sums cover, the more
    users it takes to show that they do harm.
    """
    usually = GAIN_USERS * EXPECTED_GAIN * trust * float(alone.mean())
    return float((together - alone).sum()) + usually >= 0.0


def _make_recipe(parts: OwnParts, weights: Weights, share: float, common: int, *, base_is_common: bool) -> Recipe:
    """Builds the recipe: each loudness is a weight over that of the base score.

    Where the base score is a common part it has the weight of one.
    """
    if base_is_common:
        share = min(share, 1.0 - LEAST_BASE)
    each = (1.0 - share) / common if common else 0.0
    base = each / share if base_is_common else max(weights.get(BASE, 0.0), LEAST_BASE)
    chosen = (ChosenPart(name, setting, weights.get(name, 0.0) / base) for name, setting in parts.settings.items())
    return Recipe(tuple(chosen), round(each / (share * base), 6))
