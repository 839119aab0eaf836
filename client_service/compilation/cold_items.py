"""Compiles the arrays that score cold items, and lists the best for known users.

No user has a cold item in training. Those with a text are recommended by it.
Shapes: M users, N items, d features and a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.cold_items import LISTED, STATE, ColdHead, ColdItems
from client_service.compiled.model import Relevance
from client_service.compiled.top_items import top_columns
from client_service.data.interactions import Shard
from client_service.model_store.model_files import ServedItems
from client_service.models.closed_form.content import ContentWeights
from client_service.models.closed_form.ease import UserWeights
from client_service.models.closed_form.scorer_part import ItemWeights
from client_service.models.cold_items import EaseWeights, fit_cold_items, usual_setting
from client_service.models.ranker import Rows
from client_service.runtime.interruption import Interrupt
from client_service.text.item_features import item_features, unmet_features
from client_service.text.vocabulary import SvdEncoder
from client_service.training.relevance_fit import fit_relevance
from shared.method.graph import degrees
from shared.method.parameters import Float32

WIDTH, SAMPLE = 128, 4096  # columns of the compiled factors; items by which the weakest directions are found
BLOCK = 4096  # items whose similarity to anchors is computed at a time
MOST_SCORES = 8_000_000  # of users and cold items at a time
SMALLEST = 1e-8  # variance that every direction of phi has at least, as a share of the largest
PROBED_USERS = 256  # users whose scores show whether the model knows an item
Mask = NDArray[np.bool_]


class CompiledCold(NamedTuple):
    """Head, meaning of scores and arrays of cold items."""

    head: ColdHead
    relevance: Relevance
    arrays: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class _ColdScorer:
    """Scorer of known users by content alone.

    left, right: (N, r) each.
    """

    left: Float32
    right: Float32
    train: sparse.csr_array

    def scores(self, rows: Rows, columns: Rows) -> Float32:
        """Scores some items (B, n) for each of the users in `rows` (B,)."""
        profiles = self.train[rows] @ self.left
        scores: Float32 = np.einsum("br,bnr->bn", profiles, self.right[columns]).astype(np.float32)
        return scores


def compile_cold_items(
    served: ServedItems, shard: Shard, interrupt: Interrupt, judged: Shard | None = None
) -> CompiledCold | None:
    """Compiles the arrays that score cold items; None if no item has a text.

    judged: the shard whose validation items fit probabilities of scores, if `shard` uses all data for training.
    """
    features = item_features(shard)
    if features is None or served.cold is None:
        return None
    weights = _loudest_weights(served)
    setting = usual_setting(shard.train.shape, summed=served.cold.summed)
    content = served.cold.weights.astype(np.float64)
    scorer = fit_cold_items(shard.train, features.values, setting, weights=weights, content=content)
    interrupt.check()
    texts = features.values
    sample = texts[np.linspace(0, len(texts) - 1, min(len(texts), SAMPLE)).astype(np.int64)]
    left, narrow = compress_factors(scorer.factors, scorer.map.apply(sample), WIDTH)
    blocks = (texts[first : first + BLOCK] for first in range(0, len(texts), BLOCK))
    right = np.concatenate([scorer.map.apply(block) @ narrow for block in blocks])
    judge, popularity = judged or shard, degrees(shard.train)[1].astype(np.float32)
    judging = _ColdScorer(left, right, sparse.csr_array(judge.train.astype(np.float32)))
    cold = find_cold_items(served, shard)
    has_text = cold & texts.any(axis=1)
    table, rows = right[has_text], np.flatnonzero(has_text).astype(np.int64)
    if (unmet := unmet_features(shard)) is not None:
        known = np.flatnonzero(unmet.any(axis=1))
        blocks = (unmet[known[first : first + BLOCK]] for first in range(0, len(known), BLOCK))
        table = np.concatenate([table, *(scorer.map.apply(block) @ narrow for block in blocks)])
        rows = np.concatenate([rows, len(cold) + known])
    arrays: dict[str, NDArray[Any]] = {
        "content-features": served.cold.features,
        "cold-left": left,
        "cold-anchors": scorer.map.anchors,
        "cold-map": narrow,
        "cold-table": table,
        "cold-rows": rows,
        "cold-mask": cold,
        "cold-mean": popularity @ left / np.float32(len(shard.user_ids)),
    }
    if (popularity > 0).any():
        sold = right[popularity > 0]
        center = sold.mean(axis=0)
        arrays |= {"cold-center": center, "cold-spread": (sold - center).T @ (sold - center) / np.float32(len(sold))}
    if unmet is not None:
        arrays["unmet-features"] = unmet
    if isinstance(features.text_encoder, SvdEncoder):
        arrays |= {f"{STATE}{name}": array for name, array in features.text_encoder.state.items()}
    head = ColdHead(items=len(rows), encoder=features.encoder, reach=scorer.map.reach, text=shard.text_digest)
    return CompiledCold(head, fit_relevance(judge, judging, interrupt), arrays)


def _loudest_weights(served: ServedItems) -> EaseWeights | None:
    """Finds the item-item weights that count most in the model's score; None without any."""
    parts = [(one, part) for one, part in served.ranker.fusion.parts if isinstance(part, ItemWeights | UserWeights)]
    return max(parts, key=lambda one: one[0])[1] if parts else None


def compress_factors(factors: Float32, known: Float32, width: int) -> tuple[Float32, Float32]:
    """Finds narrow matrices whose product is nearly that of given factors.

    factors: M, (N, p). known: phi of some items, by which a direction's part in the scores is measured, (n, p).
    Returns L (N, r) and V (p, r), r the width or less: x M phi^T = x L (phi V)^T, without the directions of the least
    part.
    """
    values, vectors = np.linalg.eigh(known.T.astype(np.float64) @ known / len(known))
    sizes = np.sqrt(np.maximum(values, 0.0) + SMALLEST * values[-1])
    wide = factors @ (vectors * sizes)
    turned = np.linalg.eigh(wide.T @ wide)[1][:, ::-1][:, :width]
    return (wide @ turned).astype(np.float32), (vectors / sizes @ turned).astype(np.float32)


def find_cold_items(served: ServedItems, shard: Shard) -> Mask:
    """Finds the cold items, with a text or without, (N,).

    If silos sum pairs of items, the model may know an item that this silo has not sold from the others. The item's
    scores then differ between users, which is checked for PROBED_USERS users; such an item is not cold.
    """
    cold: Mask = degrees(shard.train)[1] == 0
    users = np.flatnonzero(np.diff(shard.train.indptr) > 0)[:PROBED_USERS]
    for _, part in served.ranker.fusion.parts if cold.any() else ():
        if isinstance(part, ContentWeights):  # scores each item by its text, cold or not
            continue
        scores = part.decode(part.encode(sparse.csr_array(shard.train[users].astype(np.float32))))
        least = 1e-6 * float(np.abs(scores).max(initial=0.0))  # of all items: those of cold ones may be rounding alone
        cold[np.flatnonzero(cold)[np.ptp(scores[:, cold], axis=0) > least]] = False
    return cold


def rank_cold_items(cold: ColdItems, baskets: sparse.csr_array, known: Mask) -> tuple[Rows, Float32]:
    """Ranks the best LISTED cold items for some users.

    Returns rows, -1 if there are no more, and scores, (B, LISTED) each. baskets: (B, N). known: items that the
    users have interacted with, (B, N).
    """
    profiles = (baskets @ cold.left).astype(np.float32)
    items = np.full((len(profiles), LISTED), -1, dtype=np.int64)
    found = np.full((len(profiles), LISTED), -np.inf, dtype=np.float32)
    listed = int(np.searchsorted(cold.rows, known.shape[1]))  # the items behind these are unmet: no user knows them
    step = max(1, MOST_SCORES // max(1, len(cold.rows)))
    for first in range(0, len(profiles), step):
        some = slice(first, min(first + step, len(profiles)))
        scores = np.stack([cold.scores(profile) for profile in profiles[some]])
        scores[:, :listed][known[some][:, cold.rows[:listed]]] = -np.inf
        places, best = top_columns(scores, LISTED)
        items[some, : places.shape[1]] = np.where(best > -np.inf, cold.rows[places], -1)
        found[some, : places.shape[1]] = best
    return items, found
