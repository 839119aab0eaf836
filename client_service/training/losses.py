"""Losses from scores, popularity angles and margins (Eq. 7-10, 15); each function is one equation."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

MASKED = -1e9  # a negative that is none: its exponential is zero, its gradient too


def angle(score: Tensor) -> Tensor:
    """Computes the angle of a score (Eq. 5), in [0, pi], without gradient.

    R = arccos(tanh f). It is used for margins alone.
    """
    return torch.arccos(torch.tanh(score.detach()))


def margin(xi: Tensor, score: Tensor, strength: float) -> Tensor:
    """Computes the margin of a pair (Eq. 8), without gradient.

    M_ui = min(gamma xi, pi - R). A loss must not shrink its own margin.
    """
    return torch.minimum(strength * xi, math.pi - angle(score))


def refined_margin(updated: float | None, local: Tensor, score: Tensor, refinement: float) -> Tensor:
    """Computes the refined margin (Eq. 15), at most pi - R.

    omega M_updated + (1 - omega) M_ui. Without a value from the aggregator (the first rounds) the local margin counts
    alone.
    """
    # Paper: unlimited; here: limited, because past pi a larger angle would score higher again.
    if updated is None:
        return local
    return torch.minimum(refinement * updated + (1.0 - refinement) * local, math.pi - angle(score))


def shifted_cosine(score: Tensor, shift: Tensor) -> Tensor:
    """Computes the cosine of a score's angle plus a margin, with a finite gradient.

    cos(R + m) = tanh f cos m - sin m / cosh f: without arccos the gradient is finite everywhere. 1 / cosh f is written
    with exp(-|f|), which cannot overflow.
    """
    decay = torch.exp(-score.abs())
    sine = 2.0 * decay / (1.0 + decay**2)
    return torch.tanh(score) * torch.cos(shift) - sine * torch.sin(shift)


def lowered_cosine(score: Tensor, shift: Tensor) -> Tensor:
    """Computes the cosine of a score's angle minus a margin, as CosFace does.

    cos R - m. Wang et al. CVPR 2018.
    """
    # Paper: cos(R + m) (Eq. 9); here: cos R - m, as steep as a negative's cos R, because cos(R + m) is less steep near
    # R + m = pi and level there: with a margin of a radian the scores of all pairs fall together until none teaches.
    return torch.tanh(score) - shift


def contrastive(positive: Tensor, negatives: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """Computes the contrastive loss of positives among negatives, the mean over the batch.

    -log softmax of the positive; (B,), (B, n), (B, n) to (). The common form of Eq. 7 and Eq. 9. `excluded` marks
    sampled items that the user has in training.
    """
    logits = torch.cat([positive[:, None], negatives], dim=1) / temperature
    logits = torch.cat([logits[:, :1], logits[:, 1:].masked_fill(excluded, MASKED)], dim=1)
    return (torch.logsumexp(logits, dim=1) - logits[:, 0]).mean()


def bpr(positive: Tensor, negatives: Tensor, excluded: Tensor, weights: Tensor | None = None) -> Tensor:
    """Computes the BPR loss, the mean over all pairs that count.

    -log sigmoid(f_ui - f_uj); (B,), (B, n), (B, n) to (). `weights` (B,) scale a positive's pairs, without changing how
    many are counted.
    """
    pairs = functional.softplus(negatives - positive[:, None]).masked_fill(excluded, 0.0)
    pairs = pairs if weights is None else pairs * weights[:, None]
    return pairs.sum() / (~excluded).sum().clamp(min=1)


def bce(positive: Tensor, negatives: Tensor, excluded: Tensor, weights: Tensor | None = None) -> Tensor:
    """Computes the BCE loss: a mean over positives plus a mean over sampled pairs.

    -log sigmoid(f_ui), and -log(1 - sigmoid(f_uj)) of the sampled pairs that count; (B,), (B, n), (B, n) to (). Both
    halves weigh the same, however many are sampled. `weights` as in `bpr`.
    """
    taken = functional.softplus(-positive)
    sampled = functional.softplus(negatives).masked_fill(excluded, 0.0)
    if weights is not None:
        taken, sampled = taken * weights, sampled * weights[:, None]
    return taken.mean() + sampled.sum() / (~excluded).sum().clamp(min=1)


def bpr_of_rows(positive: Tensor, negatives: Tensor, excluded: Tensor) -> Tensor:
    """Computes the BPR loss of each positive, (B,).

    0 if no sampled item counts.
    """
    pairs = functional.softplus(negatives - positive[:, None]).masked_fill(excluded, 0.0)
    return pairs.sum(1) / (~excluded).sum(1).clamp(min=1)
