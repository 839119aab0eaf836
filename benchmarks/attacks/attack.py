"""Membership attack: scores of targets in attacked shards, learnt from shadow shards.

For each target, ridge regression in its dual form learns a linear statistic of all that the attacker sees; with more
features than shadows it is as good as a discriminant. A likelihood ratio (as in LiRA, Carlini et al. 2022) of this
statistic with and without the target gives the score. Cross-validation among the attacker's own shadows chooses the
ridge and the features.

Shapes: n shadows of the attacker, s attacked ones, F features, T targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.attacks.scores import AttackQuality, Bool, area_under_curve, judge_scores
from shared.method.graph import Float64

Blocks = Mapping[str, Float64]
"""Kinds of features, each (n, F): a client's tensors, their norms, its scalars."""
FOLDS = 5
RIDGES = tuple(10.0**power for power in range(-6, 2))
CHOSEN_BY = 500  # targets, at most: enough to choose by
SMALL = 1e-12  # a spread below this, in units of the feature's size, is rounding
EXPOSED = 0.1  # share of the targets that the attacker deems the easiest


@dataclass(frozen=True)
class Attack:
    """Result of an attack on all targets and on the most exposed tenth.

    The most exposed tenth is chosen before the attacked shards are looked at. features: those that the attack chose.
    """

    every: AttackQuality
    exposed: AttackQuality
    features: str


def run_attack(seen: Blocks, truth: Bool, attacked: slice, seed: int = 0) -> Attack:
    """Learns from the attacker's shadows and scores the attacked ones.

    seen: features of all shadows, (n + s, F) each. truth (n + s, T): whether the target is in. attacked: shadows that
    are not learnt from. Targets that are always in, or never, among the attacker's shadows are left out: nothing can
    be learnt.
    """
    own = np.ones(len(truth), dtype=bool)
    own[attacked] = False
    varied = truth[own].any(axis=0) & ~truth[own].all(axis=0)
    known, hidden = truth[own][:, varied], truth[~own][:, varied]
    names, ridge = _choose_features(seen, own, known[:, :: 1 + known.shape[1] // CHOSEN_BY])
    features = _combine_features(seen, names, own)
    kernel = features[own] @ features[own].T
    scores = _ridge_scores(kernel, features[~own] @ features[own].T, known, (ridge,))[0]
    ratios, apart = _likelihood_ratios(_cross_validate(kernel, known, (ridge,))[0], scores, known)
    easy = np.argsort(-apart, kind="stable")[: max(1, round(EXPOSED * len(apart)))]
    exposed = judge_scores(ratios[:, easy], hidden[:, easy], seed)
    return Attack(judge_scores(ratios, hidden, seed), exposed, " + ".join(names))


def _choose_features(seen: Blocks, own: Bool, known: Bool) -> tuple[Sequence[str], float]:
    """Chooses the features and the ridge with the best cross-validated AUC."""
    choices = []
    for names in _feature_subsets(list(seen)):
        features = _combine_features(seen, names, own)[own]
        for ridge, scores in zip(RIDGES, _cross_validate(features @ features.T, known, RIDGES), strict=True):
            choices.append((area_under_curve(_likelihood_ratios(scores, scores, known)[0], known), names, ridge))
    _, names, ridge = max(choices, key=lambda choice: choice[0])
    return names, ridge


def _feature_subsets(names: list[str]) -> list[list[str]]:
    """Lists each kind of feature alone, and all together."""
    return [[name] for name in names] + ([list(names)] if len(names) > 1 else [])


def _combine_features(seen: Blocks, names: Sequence[str], own: Bool) -> Float64:
    """Joins kinds of features side by side, each with the same weight."""
    return np.concatenate([_standardise_features(seen[name], own) for name in names], axis=1)


def _standardise_features(features: Float64, own: Bool) -> Float64:
    """Scales features to mean 0 and variance 1 on the attacker's shadows.

    The whole kind of feature has variance 1.
    """
    mean, spread = features[own].mean(axis=0), features[own].std(axis=0)
    useful = spread > SMALL * (np.abs(mean) + SMALL)
    count = max(1, int(useful.sum()))
    standard: Float64 = (features[:, useful] - mean[useful]) / spread[useful] / np.sqrt(count)
    return standard


def _cross_validate(kernel: Float64, known: Bool, ridges: Sequence[float]) -> Float64:
    """Scores the attacker's own shadows, each by a fit without it, (ridges, n, T)."""
    folds = np.arange(len(kernel)) % FOLDS
    crossed = np.empty((len(ridges), *known.shape))
    for fold in range(FOLDS):
        inside, outside = folds != fold, folds == fold
        scores = _ridge_scores(kernel[np.ix_(inside, inside)], kernel[np.ix_(outside, inside)], known[inside], ridges)
        crossed[:, outside] = scores - scores.mean(axis=1, keepdims=True)  # how many of a fold are in tells nothing
    return crossed


def _ridge_scores(kernel: Float64, towards: Float64, known: Bool, ridges: Sequence[float]) -> Float64:
    """Computes ridge scores of the rows of `towards`, (ridges, s, T)."""
    values, vectors = np.linalg.eigh(kernel)
    values = np.maximum(values, 0.0)
    projected = vectors.T @ (known - known.mean(axis=0))
    seen = towards @ vectors
    scale = max(float(values.mean()), SMALL)
    return np.stack([seen @ (projected / (values + ridge * scale)[:, None]) for ridge in ridges])


def _likelihood_ratios(own: Float64, others: Float64, known: Bool) -> tuple[Float64, Float64]:
    """Computes log likelihood ratios (s, T) and the distance of the two distributions (T,).

    Both distributions are normal with one spread, fitted to the attacker's own scores (n, T); the distance is in
    spreads. A target that scores higher when absent cannot be told: its ratio is 0.
    """
    count = known.sum(axis=0)
    present = (own * known).sum(axis=0) / count
    absent = (own * ~known).sum(axis=0) / (len(known) - count)
    spread = np.maximum((own - np.where(known, present, absent)).std(axis=0), np.finfo(float).tiny)
    apart = np.maximum(present - absent, 0.0) / spread
    ratios: Float64 = (others - (present + absent) / 2) / spread * apart
    return ratios, apart
