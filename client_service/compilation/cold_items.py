"""Compiles what a silo's cold items are scored by, and lists the best ones of its known users.

No user has a cold item in training, and no part of the score tells users apart by it. Those with a text are
recommended.
Shapes: M users, N items, d features and a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.cold_items import LISTED, ColdHead, ColdItems
from client_service.compiled.model import Relevance
from client_service.compiled.top_items import top_columns
from client_service.data.interactions import Shard
from client_service.model_store.model_files import Served
from client_service.models.closed_form.content import ColdItemScorer, ContentWeights, known_features
from client_service.models.ranker import Rows
from client_service.runtime.interruption import Interrupt
from client_service.training.relevance_fit import fit_relevance
from shared.method.graph import degrees
from shared.method.parameters import Float32

TELLING_USERS = 256  # users by whose scores it is seen what the parts know of an item
Mask = NDArray[np.bool_]


class CompiledCold(NamedTuple):
    """Head, meaning of scores and arrays of cold items."""

    head: ColdHead
    relevance: Relevance
    arrays: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class _ColdScorer:
    """Scorer of known users by content alone."""

    scorer: ColdItemScorer
    train: sparse.csr_array

    def scores(self, rows: Rows, columns: Rows) -> Float32:
        """Scores some items (B, n) for each of the users in `rows` (B,)."""
        profiles = self.train[rows] @ self.scorer.left
        scores: Float32 = np.einsum("bd,bnd->bn", profiles, self.scorer.features[columns]).astype(np.float32)
        return scores


def compile_cold_items(
    served: Served, shard: Shard, interrupt: Interrupt, judged: Shard | None = None
) -> CompiledCold | None:
    """Compiles what cold items are scored by; None in a silo whose items have no text.

    judged: the shard whose validation items give scores a meaning, if `shard` uses all data for training.
    """
    features, scorer = known_features(shard), served.cold
    if features is None or scorer is None:
        return None
    judge, popularity = judged or shard, degrees(shard.train)[1].astype(np.float32)
    relevance = fit_relevance(judge, _ColdScorer(scorer, sparse.csr_array(judge.train.astype(np.float32))), interrupt)
    cold = find_cold_items(served, shard)
    told = cold & scorer.features[:, :-1].any(axis=1)
    arrays: dict[str, NDArray[Any]] = {
        **scorer.arrays(),
        "cold-table": scorer.features[told],
        "cold-rows": np.flatnonzero(told).astype(np.int64),
        "cold-mask": cold,
        "cold-mean": popularity @ scorer.left / np.float32(len(shard.user_ids)),
    }
    return CompiledCold(ColdHead(items=int(told.sum()), encoder=features.encoder), relevance, arrays)


def find_cold_items(served: Served, shard: Shard) -> Mask:
    """Finds the cold items, with a text or without, (N,).

    Where silos sum what goes with what, an item that this silo has not sold may be known from the others: it is then
    told from the scores of TELLING_USERS users, which differ by it.
    """
    cold: Mask = degrees(shard.train)[1] == 0
    users = np.flatnonzero(np.diff(shard.train.indptr) > 0)[:TELLING_USERS]
    for _, part in served.ranker.fusion.parts if cold.any() else ():
        if isinstance(part, ContentWeights):  # scores an item by its text, whoever has it
            continue
        scores = part.decode(part.encode(sparse.csr_array(shard.train[users].astype(np.float32))))[:, cold]
        least = 1e-6 * max(float(np.abs(scores).max(initial=0.0)), 1e-12)
        cold[np.flatnonzero(cold)[np.ptp(scores, axis=0) > least]] = False
    return cold


def rank_cold_items(cold: ColdItems, baskets: sparse.csr_array, known: Mask) -> tuple[Rows, Float32]:
    """Ranks the best LISTED cold items for some users: rows, -1 where there are no more, and scores, (B, LISTED) each.

    baskets: (B, N). known: items that the users have met, (B, N).
    """
    scores = np.stack([cold.scores(profile) for profile in (baskets @ cold.left).astype(np.float32)])
    scores[known[:, cold.rows]] = -np.inf
    places, best = top_columns(scores, LISTED)
    items = np.full((len(scores), LISTED), -1, dtype=np.int64)
    found = np.full((len(scores), LISTED), -np.inf, dtype=np.float32)
    items[:, : places.shape[1]] = np.where(best > -np.inf, cold.rows[places], -1)
    found[:, : places.shape[1]] = best
    return items, found
