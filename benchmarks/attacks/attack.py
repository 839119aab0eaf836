"""What left shadow shards whose content is known -> a score for each target in shards that were never looked at.

A linear statistic of all that is seen is learnt for each target, by ridge regression in its dual form, which is as
good as a discriminant where there are more features than shadows; then a likelihood ratio (as in LiRA, Carlini et al.
2022) of this statistic with and without the target. How strong the ridge is, and which features are looked at, is
chosen by cross-validation among the shadows that the attacker has.

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
    """What an attack found on all targets, and on the tenth that looked easiest beforehand; which features it chose."""

    every: AttackQuality
    exposed: AttackQuality
    features: str


def run_attack(seen: Blocks, truth: Bool, attacked: slice, seed: int = 0) -> Attack:
    """Learn from the attacker's shadows, and score the attacked ones.

    seen: features of all shadows, (n + s, F) each; truth (n + s, T): whether the target is in; attacked: the shadows
    that are not learnt from. Targets that are always in, or never, among the attacker's shadows are left out: there is
    nothing to learn.
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
    """The features and the ridge with the best AUC by cross-validation among the attacker's shadows."""
    choices = []
    for names in _feature_subsets(list(seen)):
        features = _combine_features(seen, names, own)[own]
        for ridge, scores in zip(RIDGES, _cross_validate(features @ features.T, known, RIDGES), strict=True):
            choices.append((area_under_curve(_likelihood_ratios(scores, scores, known)[0], known), names, ridge))
    _, names, ridge = max(choices, key=lambda choice: choice[0])
    return names, ridge


def _feature_subsets(names: list[str]) -> list[list[str]]:
    """Each kind of feature by itself, and all together."""
    return [[name] for name in names] + ([list(names)] if len(names) > 1 else [])


def _combine_features(seen: Blocks, names: Sequence[str], own: Bool) -> Float64:
    """The kinds of features side by side, each with the same weight."""
    return np.concatenate([_standardise_features(seen[name], own) for name in names], axis=1)


def _standardise_features(features: Float64, own: Bool) -> Float64:
    """Mean 0 and variance 1 on the attacker's shadows, the whole kind of feature scaled to variance 1."""
    mean, spread = features[own].mean(axis=0), features[own].std(axis=0)
    useful = spread > SMALL * (np.abs(mean) + SMALL)
    count = max(1, int(useful.sum()))
    standard: Float64 = (features[:, useful] - mean[useful]) / spread[useful] / np.sqrt(count)
    return standard


def _cross_validate(kernel: Float64, known: Bool, ridges: Sequence[float]) -> Float64:
    """Scores of the attacker's own shadows, each by a statistic that was fitted without it, (ridges, n, T)."""
    folds = np.arange(len(kernel)) % FOLDS
    crossed = np.empty((len(ridges), *known.shape))
    for fold in range(FOLDS):
        inside, outside = folds != fold, folds == fold
        scores = _ridge_scores(kernel[np.ix_(inside, inside)], kernel[np.ix_(outside, inside)], known[inside], ridges)
        crossed[:, outside] = scores - scores.mean(axis=1, keepdims=True)  # how many of a fold are in tells nothing
    return crossed


def _ridge_scores(kernel: Float64, towards: Float64, known: Bool, ridges: Sequence[float]) -> Float64:
    """Scores of the rows of `towards`, (ridges, s, T)."""
    values, vectors = np.linalg.eigh(kernel)
    values = np.maximum(values, 0.0)
    projected = vectors.T @ (known - known.mean(axis=0))
    seen = towards @ vectors
    scale = max(float(values.mean()), SMALL)
    return np.stack([seen @ (projected / (values + ridge * scale)[:, None]) for ridge in ridges])


def _likelihood_ratios(own: Float64, others: Float64, known: Bool) -> tuple[Float64, Float64]:
    """Log likelihood ratios of `others` (s, T) under two normal distributions with one spread, fitted to the
    attacker's own scores (n, T), and how many spreads these are apart, (T,). A target that scores higher when it is
    absent is not told: its ratio is 0."""
    count = known.sum(axis=0)
    present = (own * known).sum(axis=0) / count
    absent = (own * ~known).sum(axis=0) / (len(known) - count)
    spread = np.maximum((own - np.where(known, present, absent)).std(axis=0), np.finfo(float).tiny)
    apart = np.maximum(present - absent, 0.0) / spread
    ratios: Float64 = (others - (present + absent) / 2) / spread * apart
    return ratios, apart
