"""Shard, spectrum and starting filter -> the recipe of the fusion that the shard's validation items prefer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from client_service.learning.evaluate import CHUNK, TopItems, evaluate, ranked_by, validation_users
from client_service.learning.filters import filter_scores
from client_service.learning.interrupt import NEVER, Interrupt
from client_service.models.full_spectrum import full_spectrum, quarter_spectrum
from client_service.models.fusion import Recipe, Scorer, fuse, standard_scores, standardise, take_codes
from client_service.models.least_squares import Weighting, least_squares
from client_service.models.ranker import Rows
from client_service.models.start import Filter
from client_service.shard import Shard
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

RIDGES = (3.0, 10.0, 20.0)
LOUDNESSES = (0.0, 0.5, 1.0, 2.0, 5.0, 20.0)
WEIGHTINGS = (Weighting((24, 48, 96), 0.3, 0.01), Weighting((64,), 0.03, 0.003))
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)  # of the least squares beside what is louder, the base or the filter
MOST_SCORES = 40_000_000  # users x items that a choice is made on: bounds memory at 160 MB a candidate


class Judge:
    """The primary measure of weighted sums of standardised scores on validation items.

    Every candidate is scored once, on the users in `users`.
    """

    def __init__(self, shard: Shard, interrupt: Interrupt) -> None:
        users = validation_users(shard.train.shape[0], seed=0)
        self.users: Rows = users[: max(1, MOST_SCORES // shard.train.shape[1])]
        self._place = np.full(shard.train.shape[0], -1)
        self._place[self.users] = np.arange(len(self.users))
        self._shard, self._interrupt = shard, interrupt

    def scored(self, part: Scorer) -> Float32:
        """Standardised scores of the users' training items, (users, N)."""
        chunks = np.split(self.users, np.arange(CHUNK, len(self.users), CHUNK))
        baskets = (self._shard.train[chunk].astype(np.float32) for chunk in self._interrupt.each(chunks))
        return np.concatenate([standardise(standard_scores(part, one)) for one in baskets])

    def quality(self, scores: Float32) -> float:
        """Of ranking by these scores (users, N)."""
        top = self._interrupt.before(ranked_by(lambda rows: scores[self._place[rows]]))
        return evaluate(top, self._shard.valid, self._shard.train, self.users).primary_value


def best_recipe(shard: Shard, spectrum: Spectrum, chosen: Filter, interrupt: Interrupt = NEVER) -> Recipe:
    """First the full-spectrum filter's ridge, then its loudness beside the base, then the least squares on top."""
    judge = Judge(shard, interrupt)
    base = standardise(filter_scores(chosen, spectrum, shard.train)(judge.users))
    quarter = quarter_spectrum(shard.train)
    filters = {ridge: judge.scored(full_spectrum(shard.train, quarter, ridge)) for ridge in RIDGES}
    ridge = max(filters, key=lambda one: judge.quality(filters[one]))
    louder = {value: judge.quality(base + value * filters[ridge]) for value in LOUDNESSES}
    loudness = max(louder, key=lambda value: louder[value])
    recipe = Recipe(ridge, loudness, WEIGHTINGS[0], 0.0)
    squares = {one: judge.scored(least_squares(shard.train, spectrum, one)) for one in WEIGHTINGS}
    return _with_squares(judge, recipe, base + loudness * filters[ridge], squares)


def fused_top(shard: Shard, spectrum: Spectrum, chosen: Filter) -> TopItems:
    """Lists of the filter and what the best recipe fuses with it: what is served before any training."""
    fusion = fuse(best_recipe(shard, spectrum, chosen), shard.train, spectrum)
    base, codes = filter_scores(chosen, spectrum, shard.train), fusion.encoded(shard.train)
    return ranked_by(lambda rows: fusion.added(base(rows), take_codes(codes, rows)))


def _with_squares(judge: Judge, recipe: Recipe, sofar: Float32, squares: Mapping[Weighting, Float32]) -> Recipe:
    """Nothing is added where it does not raise the primary measure."""
    unit = max(1.0, recipe.filter_loudness)
    tried = [
        (judge.quality(sofar + share * unit * scores), replace(recipe, weighting=one, squares_loudness=share * unit))
        for one, scores in squares.items()
        for share in SHARES
    ]
    return max(tried, key=lambda pair: pair[0])[1]
