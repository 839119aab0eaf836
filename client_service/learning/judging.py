"""Scorers and a shard's validation items -> which of them rank better, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from scipy import sparse

from client_service.learning.evaluate import hits_of_each, split_users, validation_users
from client_service.learning.interrupt import Interrupt
from client_service.learning.quality import METRICS, PRIMARY, PerUser
from client_service.models.fusion import Scorer, standard_scores, standardise
from client_service.models.ranker import Rows
from client_service.shard import Shard
from shared.cores import in_threads
from shared.method.parameters import Float32

MOST_SCORES = 40_000_000  # users x items that a choice is made on: bounds memory at 160 MB a candidate
ERRORS = 1.0  # standard errors by which a setting must be better than the usual one

Setting = TypeVar("Setting")
Option = TypeVar("Option")
Blends = Callable[[slice], Iterable[Float32]]
"""Places among a judge's users -> the scores of several candidates for them in turn: see `Candidates`."""


class Judge:
    """The primary measure of weighted sums of standardised scores on validation items.

    Every candidate is scored once, on the users in `users`, all of whom have a validation item; count: how many.
    """

    def __init__(self, shard: Shard, interrupt: Interrupt) -> None:
        users = validation_users(shard.train.shape[0], seed=0)
        some = users[: max(1, MOST_SCORES // shard.train.shape[1])]
        self.users: Rows = some[np.diff(shard.valid.indptr)[some] > 0]
        self.count = len(self.users)
        self._shard, self._interrupt = shard, interrupt

    def scored(self, part: Scorer) -> Float32:
        """Standardised scores of the users' training items, (users, N)."""
        return self.scored_together(lambda baskets: (standard_scores(part, baskets),), 1)[0]

    def scored_together(self, parts: Callable[[sparse.csr_array], Iterable[Float32]], count: int) -> list[Float32]:
        """Likewise of so many parts, whose scores of baskets (B, N) `parts` gives in turn."""
        found = [np.empty((self.count, self._shard.train.shape[1]), np.float32) for _ in range(count)]

        def score(users: Rows) -> None:
            self._interrupt.check()
            baskets = self._shard.train[users].astype(np.float32)
            for whole, scores in zip(found, parts(baskets), strict=True):
                whole[self._places(users)] = standardise(scores)

        in_threads(score, split_users(self.users, self._shard.train.shape[1]))
        return found

    def by_user_of_each(self, candidates: Blends) -> list[PerUser]:
        """Of ranking by the scores of several candidates, for each user, in one pass."""
        shard = self._shard
        hits, relevant = hits_of_each(
            lambda users: candidates(self._places(users)),
            shard.valid,
            shard.train,
            self.users,
            self._interrupt,
        )
        return [METRICS[PRIMARY].per_user(one, relevant) for one in hits]

    def by_user(self, scores: Float32) -> PerUser:
        """Of ranking by these scores (users, N), for each user."""
        return self.by_user_of_each(lambda places: [scores[places].copy()])[0]

    def quality(self, scores: Float32) -> float:
        """The mean over the users; 0 where nobody has a validation item."""
        return float(self.by_user(scores).mean()) if self.count else 0.0

    def best_of(self, options: Sequence[Option], candidates: Blends) -> Option:
        """The first of those whose scores, which `candidates` gives in their order, rank best; the first of all where
        nobody has a validation item."""
        if not self.count:
            return options[0]
        means = [one.mean() for one in self.by_user_of_each(candidates)]
        return options[int(np.argmax(means))]

    def preferred(
        self, usual: tuple[Setting, Float32], others: Iterable[tuple[Setting, Float32]], errors: float = ERRORS
    ) -> tuple[Setting, Float32]:
        """The best of several settings with their scores; the usual one unless another is better for sure, by so many
        standard errors."""
        if self.count < 2:
            return usual
        best, most = usual, 0.0
        before = self.by_user(usual[1])
        for other in others:
            gain = self.by_user(other[1]) - before
            surely = float(gain.mean() - errors * gain.std(ddof=1) / np.sqrt(len(gain)))
            if surely > most:
                best, most = other, surely
        return best

    def _places(self, users: Rows) -> slice:
        """Of users that stand together, if any."""
        first = int(np.searchsorted(self.users, users[0])) if len(users) else 0
        return slice(first, first + len(users))
