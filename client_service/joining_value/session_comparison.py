"""After a run over sessions: popular items, what the silo's own counts give, and what is served, on test clicks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.metrics import SESSION_LABELS, SESSION_PRIMARY
from client_service.evaluation.session_baselines import score_by_popularity, score_by_successors
from client_service.evaluation.session_metrics import ScoreItems, rank_prefixes
from client_service.joining_value.comparison import FEW_USERS, mean_interval
from client_service.joining_value.messages import ComparisonOut, GroupOut
from client_service.runtime.interruption import NEVER, Interrupt
from shared.method.graph import Float64

DEPTH = 20
LENGTHS = (("all visits", 1, 1 << 30), ("after the first click", 1, 1), ("later in a visit", 2, 1 << 30))


def compare_with_counts(shard: SessionShard, score: ScoreItems, interrupt: Interrupt = NEVER) -> ComparisonOut:
    """MRR@20 of each on all test examples, and by the length of the visit. Alone is what followed the last click in the
    silo's own sessions: no network of one silo is trained for this."""
    clicks, starts = shard.split_sessions(TRAIN)
    items = len(shard.item_ids)
    ways = {
        "popularity": score_by_popularity(clicks, items),
        "alone": score_by_successors(clicks, starts, items),
        "federated": score,
    }
    values = {name: _reciprocal(rank_prefixes(way, shard.test, items, interrupt)) for name, way in ways.items()}
    lengths = shard.test.lengths
    chosen = ((name, (lengths >= least) & (lengths <= most)) for name, least, most in LENGTHS)
    groups = tuple(_group(name, values, inside) for name, inside in chosen if inside.any())
    few = len(lengths) < FEW_USERS
    return ComparisonOut(measure=SESSION_LABELS[SESSION_PRIMARY].key, users=len(lengths), few=few, groups=groups)


def _reciprocal(ranks: NDArray[np.int64]) -> Float64:
    return np.where((ranks > 0) & (ranks <= DEPTH), 1.0 / np.maximum(ranks, 1), 0.0)


def _group(name: str, values: dict[str, Float64], inside: NDArray[np.bool_]) -> GroupOut:
    figures = {who: mean_interval(found[inside], 0.0) for who, found in values.items()}
    gain = mean_interval(values["federated"][inside] - values["alone"][inside])
    return GroupOut(name=name, users=int(inside.sum()), **figures, gain=gain)
