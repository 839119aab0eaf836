"""Quality of an attack: AUC with its interval, and recall at few false alarms.

Shapes: S shadow shards, T targets, B draws of the bootstrap, C classes of equal scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from shared.method.graph import Float64

Bool = NDArray[np.bool_]
CLASSES = (
    4000  # scores are compared in this many steps of rank: an AUC is exact to a few 1e-4, and exact with fewer scores
)
DRAWS = 1000
LEVEL = 0.05
FALSE_ALARMS = 0.01
FEWEST_ABSENT = 1000  # trials without the target, below which one false alarm in a hundred is a matter of chance


@dataclass(frozen=True)
class AttackQuality:
    """Quality of an attack.

    low, high: 95 % of the bootstrap. tpr: true positive rate at 1 % false alarms, None with too few trials.
    """

    auc: float
    low: float
    high: float
    tpr: float | None
    trials: int


def judge_scores(scores: Float64, truth: Bool, seed: int = 0) -> AttackQuality:
    """Computes the quality of an attack from scores and truth (S, T).

    A higher score means that the target is present. Shadows are drawn with replacement, as the trials of one shadow
    share its shard. An AUC without trials of one kind is .5.
    """
    present, absent = _score_histograms(scores, truth)
    drawn = np.random.default_rng(seed).multinomial(len(scores), np.full(len(scores), 1 / len(scores)), DRAWS)
    low, high = np.quantile(_areas_under_curve(present, absent, drawn.astype(np.float64)), [LEVEL / 2, 1 - LEVEL / 2])
    auc = float(_areas_under_curve(present, absent, np.ones((1, len(scores))))[0])
    return AttackQuality(auc, float(low), float(high), _true_positive_rate(present.sum(0), absent.sum(0)), scores.size)


def area_under_curve(scores: Float64, truth: Bool) -> float:
    """Computes the AUC of scores (S, T) against the truth (S, T).

    A tie counts half.
    """
    present, absent = _score_histograms(scores, truth)
    return float(_areas_under_curve(present, absent, np.ones((1, len(scores))))[0])


def _score_histograms(scores: Float64, truth: Bool) -> tuple[Float64, Float64]:
    """Counts trials of each shadow by score, (S, C), with and without the target."""
    dense = rankdata(scores, method="dense").astype(np.int64) - 1
    distinct = int(dense.max()) + 1
    if distinct > CLASSES:
        dense = (rankdata(scores, method="min").astype(np.int64) - 1) * CLASSES // scores.size
    size = min(distinct, CLASSES)
    cells = (dense.reshape(scores.shape) + size * np.arange(len(scores))[:, None]).ravel()
    counts = [np.bincount(cells[trials.ravel()], minlength=size * len(scores)) for trials in (truth, ~truth)]
    present, absent = (count.reshape(len(scores), size).astype(np.float64) for count in counts)
    return present, absent


def _areas_under_curve(present: Float64, absent: Float64, weights: Float64) -> Float64:
    """Computes the chance that a trial with the target scores higher, (B,).

    A tie counts half.
    """
    with_it, without = weights @ present, weights @ absent
    below = np.cumsum(without, axis=1) - without / 2
    pairs = with_it.sum(1) * without.sum(1)
    wins = (with_it * below).sum(1)
    areas: Float64 = np.divide(wins, pairs, out=np.full(len(weights), 0.5), where=pairs > 0)
    return areas


def _true_positive_rate(present: Float64, absent: Float64) -> float | None:
    """Computes the share of targets with a score that few absent trials reach.

    Few: at most the share FALSE_ALARMS of them. None with too few trials.
    """
    if absent.sum() < FEWEST_ABSENT or not present.sum():
        return None
    alarms = np.cumsum(absent[::-1])[::-1] / absent.sum()  # at this score or above
    return float(present[alarms <= FALSE_ALARMS].sum() / present.sum())
