"""Fits how likely an item with a score is among validation items (Platt's sigmoid).

Probabilities for support vector machines. Platt. 1999. Shapes: B users, n drawn items a user.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.model import UNFITTED, Relevance
from client_service.data.interactions import Shard
from client_service.evaluation.ranking import sample_validation_users, split_users
from client_service.models.ranker import Rows
from client_service.runtime.interruption import Interrupt
from shared.method.graph import Float64
from shared.method.parameters import Float32

USERS = 256  # by whose validation items it is fitted
DRAWN = 200  # drawn items a user, for all that the user has not met
STEEPEST = 20.0  # logits from one standard deviation of the scores to the next

Scored = tuple[Float64, Float64, Float64]
"""Scores, 1 for a validation item and 0 for another, and for how many pairs each stands."""


class PairScorer(Protocol):
    """Scorer of user-item pairs of known users."""

    def scores(self, rows: Rows, columns: Rows) -> Float32:
        """Computes the scores of some items (B, n) for the users in `rows` (B,)."""
        ...


def fit_relevance(shard: Shard, ranker: PairScorer, interrupt: Interrupt) -> Relevance:
    """Fits the relevance of scores by validation items against drawn items.

    Items are drawn that the user has not interacted with. UNFITTED where one of both is missing.
    """
    users = sample_validation_users(shard.train.shape[0], seed=0)
    judging = users[np.diff(shard.valid.indptr)[users] > 0][:USERS]
    if not len(judging):
        return UNFITTED
    blocks = [_score_block(shard, ranker, rows, interrupt) for rows in split_users(judging, shard.train.shape[1])]
    scores, wanted, weights = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    spread = float(scores.std())
    if spread == 0.0 or wanted.all() or not wanted.any():
        return UNFITTED
    slope, intercept = _fit(((scores - scores.mean()) / spread, wanted, weights))
    return Relevance(slope / spread, intercept - slope * float(scores.mean()) / spread)


def _score_block(shard: Shard, ranker: PairScorer, users: Rows, interrupt: Interrupt) -> Scored:
    """Scores validation items and drawn items of some users, with weights.

    A validation item has weight 1, a drawn one its share of the items that the user has not interacted with.
    """
    interrupt.check()
    count, valid = shard.train.shape[1], shard.valid[users]
    met = (shard.train[users] + valid).toarray() > 0
    drawn = np.random.default_rng(int(users[0])).integers(0, count, (len(users), DRAWN))
    fresh = ~np.take_along_axis(met, drawn, axis=1)
    share = (~met).sum(axis=1) / np.maximum(fresh.sum(axis=1), 1)
    held, inside = _pad_rows(valid)
    scores = ranker.scores(users, np.concatenate([held, drawn], axis=1)).astype(np.float64)
    marks = np.concatenate([np.ones(held.shape), np.zeros(drawn.shape)], axis=1)
    weights = np.concatenate([np.ones(held.shape), np.broadcast_to(share[:, None], drawn.shape)], axis=1)
    counted = np.concatenate([inside, fresh], axis=1)
    return scores[counted], marks[counted], weights[counted]


def _pad_rows(rows: sparse.csr_array) -> tuple[Rows, NDArray[np.bool_]]:
    """Returns the columns of each row's entries, padded with 0, and their mask.

    Both are (B, n).
    """
    lengths = np.diff(rows.indptr)
    inside = np.arange(lengths.max()) < lengths[:, None]
    columns = np.zeros(inside.shape, dtype=np.int64)
    columns[inside] = rows.indices
    return columns, inside


def _fit(scored: Scored) -> tuple[float, float]:
    """Computes the slope and intercept with the least weighted log loss.

    Platt's targets replace 0 and 1.
    """
    from scipy import optimize  # a twentieth of a trainer's start
    from scipy.special import expit

    scores, wanted, weights = scored
    yes, no = float(weights[wanted > 0].sum()), float(weights[wanted == 0].sum())
    targets = np.where(wanted > 0, (yes + 1.0) / (yes + 2.0), 1.0 / (no + 2.0))

    def loss(parameters: Float64) -> tuple[float, Float64]:
        slope = np.exp(parameters[0])
        logits = slope * scores + parameters[1]
        error = weights * (expit(logits) - targets)
        value = float(weights @ (np.logaddexp(0.0, logits) - targets * logits))
        return value, np.array([error @ scores * slope, error.sum()])

    begin = np.array([0.0, np.log(yes / no)])
    found = optimize.minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=[(-5.0, np.log(STEEPEST)), (None, None)])
    return float(np.exp(found.x[0])), float(found.x[1])
