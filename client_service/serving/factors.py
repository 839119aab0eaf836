"""Models with an item table -> a ranker by dot products, and a basket folded in by a ridge solve."""

from __future__ import annotations

import numpy as np
import torch

from client_service.learning.evaluate import Rows
from client_service.models.factors import Factors
from client_service.serving.recommend import Predictor, Ranker, Side, array_of, fold_in, snapshot
from shared.method.parameters import Float32

RIDGE = 1e-2  # of the user vector that is solved for, times the mean squared length of the item vectors
UNSEEN = 0.1  # weight of all items together, as items not taken, against one item of the basket


@snapshot.register
@torch.no_grad()
def _(model: Factors) -> Ranker:
    users, items = (array_of(rows) for rows in model.vectors())
    return Ranker(_side(users), _side(items), _no_mlp(users.shape[1]), residual=True)


@fold_in.register
@torch.no_grad()
def _(model: Factors, basket: Rows) -> Side:
    return _side(folded(array_of(model.vectors()[1]), basket)[None])


def folded(items: Float32, basket: Rows) -> Float32:
    """The vector x (d,) of somebody with the basket (b,) among items (N, d): least squares for 1 on the basket and,
    with the small weight UNSEEN / N each, 0 on everything, as in implicit-feedback matrix factorisation."""
    values = items.astype(np.float64)
    own = values[basket]
    gram = own.T @ own + UNSEEN / len(values) * (values.T @ values)
    ridge = RIDGE * float((values**2).sum(1).mean()) + np.finfo(np.float64).tiny
    found: Float32 = np.linalg.solve(gram + ridge * np.eye(len(gram)), own.sum(0)).astype(np.float32)
    return found


def _no_mlp(width: int) -> Predictor:
    """A predictive MLP that adds nothing."""
    zeros = np.zeros(width, dtype=np.float32)
    return Predictor(np.zeros((width, width), dtype=np.float32), zeros, np.float32(0.0))


def _side(embedding: Float32) -> Side:
    nothing = np.zeros((len(embedding), 0), dtype=np.float32)
    return Side(embedding, nothing, nothing)
