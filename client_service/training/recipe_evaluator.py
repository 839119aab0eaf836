"""Evaluates weighted sums of scorers on validation items.

All items are ranked, or those alone that can be among the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.top_items import top_columns
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import METRICS, PRIMARY, K, PerUser
from client_service.evaluation.ranking import find_candidate_hits, mark_held_out, sample_validation_users, split_users
from client_service.models.closed_form.scorer_part import Scorer
from client_service.models.ranker import Rows
from client_service.models.score_fusion import standard_scores, standardise
from client_service.runtime.interruption import Interrupt
from shared.cores import map_in_threads
from shared.method.parameters import Float32

MOST_SCORES = 40_000_000  # users x items of one candidate: bounds its memory at 160 MB
ERRORS = 1.0  # standard errors by which a setting must be better than the usual one
LISTED = 128  # best items of each scorer that are kept for a user, if not all are
PADDING, NONE_OUTSIDE = np.float32(-1e9), np.float32(-2e9)  # scores of columns without an item; of no item outside
TOGETHER = 256  # users whose kept items are ranked at a time

Candidate = TypeVar("Candidate")
Option = TypeVar("Option")
Blends = Callable[[slice], Iterable[Float32]]
"""Function from places among the evaluator's users to the scores of several candidates in turn."""
Score = Callable[[slice], Float32]
"""Function from places among the evaluator's users to their scores, which the caller may overwrite."""


def take_rows(scores: Float32) -> Score:
    """Makes a function that copies the scores at given places of a matrix (users, N)."""
    return lambda places: scores[places].copy()


class UncertainRankError(Exception):
    """An item that was not kept may be among the first of a user."""


class RecipeEvaluator:
    """Ranks validation items by weighted sums of standardised scores.

    Its values are of the primary measure. Every candidate is scored once, on the users in `users`, all of whom have a
    validation item; count: how many.
    """

    def __init__(self, shard: Shard, interrupt: Interrupt) -> None:
        users = sample_validation_users(shard.train.shape[0], seed=0)
        some = users[: max(1, MOST_SCORES // shard.train.shape[1])]
        self.users: Rows = some[np.diff(shard.valid.indptr)[some] > 0]
        self.count = len(self.users)
        self._shard, self._interrupt = shard, interrupt

    def score_part(self, part: Scorer) -> Float32:
        """Scores the users' training items with a part, standardised, (users, N)."""
        return self.score_parts(lambda baskets: (standard_scores(part, baskets),), 1)[0]

    def score_parts(self, parts: Callable[[sparse.csr_array], Iterable[Float32]], count: int) -> list[Float32]:
        """Scores the users' training items with several parts, standardised, (users, N) each.

        parts: baskets (B, N) -> the scores of each of `count` parts in turn.
        """
        found = [np.empty((self.count, self._shard.train.shape[1]), np.float32) for _ in range(count)]

        def score(users: Rows) -> None:
            self._interrupt.check()
            baskets = self._shard.train[users].astype(np.float32)
            for whole, scores in zip(found, parts(baskets), strict=True):
                whole[self._places(users)] = standardise(scores)

        map_in_threads(score, split_users(self.users, self._shard.train.shape[1]))
        return found

    def measure_each(self, candidates: Blends) -> list[PerUser]:
        """Measures each user's rankings by the scores of several candidates in one pass."""
        shard = self._shard
        hits, relevant = find_candidate_hits(
            lambda users: candidates(self._places(users)),
            shard.valid,
            shard.train,
            self.users,
            self._interrupt,
        )
        return [METRICS[PRIMARY].per_user(one, relevant) for one in hits]

    def measure_users(self, scores: Score) -> PerUser:
        """Measures each user's ranking by these scores."""
        return self.measure_each(lambda places: [scores(places)])[0]

    def quality(self, scores: Float32) -> float:
        """Measures the mean quality of scores (users, N).

        It is 0 if no user has a validation item.
        """
        return float(self.measure_users(take_rows(scores)).mean()) if self.count else 0.0

    def choose_best(self, options: Sequence[Option], candidates: Blends) -> Option:
        """Returns the option whose scores rank best, the first among equals.

        candidates: gives the scores in the order of the options. Where no user has a validation item, the first option
        is returned.
        """
        if not self.count:
            return options[0]
        means = [one.mean() for one in self.measure_each(candidates)]
        return options[int(np.argmax(means))]

    def choose_surely(
        self, usual: tuple[Candidate, Score], others: Iterable[tuple[Candidate, Score]], errors: float = ERRORS
    ) -> Candidate:
        """Chooses another setting than the usual one where it is surely better.

        Surely: by `errors` standard errors; of several the surest is taken. Each setting comes with its scores.
        """
        if self.count < 2:
            return usual[0]
        best, most = usual[0], 0.0
        before = self.measure_users(usual[1])
        for other in others:
            gain = self.measure_users(other[1]) - before
            surely = float(gain.mean() - errors * gain.std(ddof=1) / np.sqrt(len(gain)))
            if surely > most:
                best, most = other[0], surely
        return best

    def _places(self, users: Rows) -> slice:
        """Returns the places of users that are adjacent in `users`; an empty slice for none."""
        first = int(np.searchsorted(self.users, users[0])) if len(users) else 0
        return slice(first, first + len(users))

    def keep_best(
        self, scores: Callable[[Rows], Iterable[Float32]], count: int
    ) -> tuple[KeptItemsEvaluator, list[Float32]]:
        """Builds an evaluator of the kept items alone, and their scores by each scorer.

        Kept are the items among the best LISTED of at least one of `count` scorers. scores: users (B,) -> the scores of
        each scorer in turn, (B, N). The evaluator ranks any sum of them with weights of at least 0. A scorer's last
        column is the best score of an item that was not kept.
        """
        shard, items = self._shard, self._shard.train.shape[1]

        def keep(users: Rows) -> tuple[NDArray[np.bool_], list[Float32]]:
            self._interrupt.check()
            seen, everybody = shard.train[users], np.arange(len(users))
            known = np.repeat(everybody, np.diff(seen.indptr)), seen.indices
            kept = np.zeros((len(users), items), dtype=bool)
            whole = []
            for one in scores(users):
                standard = standardise(one)
                standard[known] = -np.inf
                kept[everybody[:, None], top_columns(standard, LISTED)[0]] = True
                whole.append(standard)
            kept[known] = False
            rows, columns = np.nonzero(kept)
            lengths = np.bincount(rows, minlength=len(users))
            places = rows, np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            width = int(lengths.max(initial=0))
            wanted = np.zeros((len(users), width), dtype=bool)
            wanted[places] = mark_held_out(shard.valid, users)[rows, columns]
            return wanted, [_keep_columns(one, (rows, columns), places, width) for one in whole]

        blocks = map_in_threads(keep, split_users(self.users, items))
        width = max((wanted.shape[1] for wanted, _ in blocks), default=0)
        found = [np.full((self.count, width + 1), PADDING) for _ in range(count)]
        relevant, first = np.zeros((self.count, width), dtype=bool), 0
        for wanted, narrow in blocks:
            here = slice(first, first + len(wanted))
            relevant[here, : wanted.shape[1]] = wanted
            for whole, part in zip(found, narrow, strict=True):
                whole[here, : part.shape[1] - 1], whole[here, -1] = part[:, :-1], part[:, -1]
            first = here.stop
        return KeptItemsEvaluator(shard, self._interrupt, relevant), found


class KeptItemsEvaluator(RecipeEvaluator):
    """Evaluator that ranks the kept items of each user alone.

    Its values are the same, for a fiftieth of the work and memory.
    wanted: which kept items are validation items, (users, kept). Scores have one more column: see `keep_best`. A sum is
    no higher for an item that was not kept than for that column, so that the first items of a list are known to be the
    first; where they are not UncertainRankError is raised.
    """

    def __init__(self, shard: Shard, interrupt: Interrupt, wanted: NDArray[np.bool_]) -> None:
        super().__init__(shard, interrupt)
        self._wanted, self._relevant = wanted, np.diff(shard.valid.indptr)[self.users]

    def measure_each(self, candidates: Blends) -> list[PerUser]:
        """Measures each user's rankings by the scores of several candidates in one pass."""

        def hits(places: slice) -> list[NDArray[np.bool_]]:
            self._interrupt.check()
            found, wanted = [], self._wanted[places]
            for scores in candidates(places):
                columns, best = top_columns(scores[:, :-1], K)
                if bool((scores[:, -1] >= best[:, -1]).any()):
                    raise UncertainRankError
                found.append(np.take_along_axis(wanted, columns, 1))
            return found

        blocks = [slice(first, first + TOGETHER) for first in range(0, self.count, TOGETHER)]
        each = zip(*map_in_threads(hits, blocks), strict=True)
        return [METRICS[PRIMARY].per_user(np.concatenate(one), self._relevant) for one in each]


def _keep_columns(scores: Float32, kept: tuple[Rows, Rows], places: tuple[Rows, Rows], width: int) -> Float32:
    """Copies the scores of kept items to their places, and the best other score behind.

    The scores are overwritten.
    """
    found = np.full((len(scores), width + 1), PADDING)
    found[places] = scores[kept]
    scores[kept] = -np.inf
    found[:, -1] = np.maximum(scores.max(axis=1), NONE_OUTSIDE)
    return found
