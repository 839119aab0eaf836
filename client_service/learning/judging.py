"""Scorers and a shard's validation items -> which of them rank better, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from client_service.learning.evaluate import CHUNK, find_hits, ranked_by, validation_users
from client_service.learning.interrupt import Interrupt
from client_service.learning.quality import METRICS, PRIMARY, PerUser
from client_service.models.fusion import Scorer, standard_scores, standardise
from client_service.models.ranker import Rows
from client_service.shard import Shard
from shared.method.parameters import Float32

MOST_SCORES = 40_000_000  # users x items that a choice is made on: bounds memory at 160 MB a candidate
ERRORS = 1.0  # standard errors by which a setting must be better than the usual one

Setting = TypeVar("Setting")


class Judge:
    """The primary measure of weighted sums of standardised scores on validation items.

    Every candidate is scored once, on the users in `users`. count: how many of them have a validation item.
    """

    def __init__(self, shard: Shard, interrupt: Interrupt) -> None:
        users = validation_users(shard.train.shape[0], seed=0)
        self.users: Rows = users[: max(1, MOST_SCORES // shard.train.shape[1])]
        self.count = int(np.count_nonzero(np.diff(shard.valid.indptr)[self.users]))
        self._place = np.full(shard.train.shape[0], -1)
        self._place[self.users] = np.arange(len(self.users))
        self._shard, self._interrupt = shard, interrupt

    def scored(self, part: Scorer) -> Float32:
        """Standardised scores of the users' training items, (users, N)."""
        chunks = np.split(self.users, np.arange(CHUNK, len(self.users), CHUNK))
        baskets = (self._shard.train[chunk].astype(np.float32) for chunk in self._interrupt.each(chunks))
        return np.concatenate([standardise(standard_scores(part, one)) for one in baskets])

    def by_user(self, scores: Float32) -> PerUser:
        """Of ranking by these scores (users, N), for each user with a validation item."""
        top = self._interrupt.before(ranked_by(lambda rows: scores[self._place[rows]]))
        return METRICS[PRIMARY].per_user(*find_hits(top, self._shard.valid, self._shard.train, self.users))

    def quality(self, scores: Float32) -> float:
        """The mean over the users; 0 where nobody has a validation item."""
        return float(self.by_user(scores).mean()) if self.count else 0.0

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
