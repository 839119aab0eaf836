"""FedUTR-SAR's model: weights item text and interactions by the user's number of items.

f_ui = <u, LayerNorm(a_u G(E_i) + (1 - a_u) E_i) * g + c> needs no table of each user's items: a layer's mean and
variance follow from those of G_i and E_i and their covariance. Shapes: M users, N items, d width, B rows, K knots.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from client_service.models.encoder import Nodes
from client_service.models.encoders.fedutr import EPSILON, FedUTR
from client_service.models.item_table import to_nodes
from client_service.models.model import Head, Model, ModelInputs, Pooled, embedding_side
from client_service.models.ranker import Predictor, Side
from shared.errors import SettingsError

APART = 1e-3  # least distance of a knot from the usual one, as a share of half their range
PRECISE, MOST_KNOTS = 1e-7, 48  # of the lengths that the served form interpolates between its knots; most knots


class SparsityAware(FedUTR):
    """Encoder of FedUTR-SAR.

    Private besides: `sparsity` p and q of a_u = sigmoid(p log n_u + q), n_u a user's training items. Rows of users are
    [u * g, <u, c>, a_u], those of items [G_i, E_i].
    """

    # Paper: a drawing of the block alone; here: a_u and 1 - a_u as the two weights, which at p = q = 0 rank as FedUTR.
    logs: Tensor

    def __init__(self, given: ModelInputs) -> None:
        super().__init__(given)
        if not self.switches.fusion:
            raise SettingsError("strategy.fusion: expected true with fedutr_sar, which has a share of it, got false")
        self.sparsity = nn.Parameter(torch.zeros(2))
        counts = np.maximum(np.diff(given.interactions.indptr), 1)
        self.register_buffer("logs", torch.tensor(np.log(counts), dtype=self.embedding.dtype), persistent=False)
        usual = np.log(float(np.median(counts)))
        limits = (usual, np.log(counts.min()), np.log(counts.max()))
        self.register_buffer("usual_logs", torch.tensor(limits, dtype=self.embedding.dtype), persistent=False)

    usual_logs: Tensor

    def shares(self, logs: Tensor) -> Tensor:
        """Computes the shares a of users by the logarithm of their number of items."""
        return torch.sigmoid(self.sparsity[0] * logs + self.sparsity[1])

    def user_rows(self, users: Tensor) -> Tensor:
        return self.wide_users(self.embedding[users], self.shares(self.logs[users]))

    def wide_users(self, vectors: Tensor, shares: Tensor) -> Tensor:
        """Computes the users' rows [u * g, <u, c>, a], (B, d + 2)."""
        values = self.fusion_values()
        if not self.switches.normalise:
            return torch.cat([vectors, vectors.new_zeros(len(vectors), 1), shares[:, None]], dim=1)
        return torch.cat([vectors * values.gain, vectors @ values.shift[:, None], shares[:, None]], dim=1)

    def fuse(self, rows: Tensor) -> Tensor:
        return torch.cat([self.fusion_values().interactions(rows), rows], dim=1)

    def vectors(self) -> tuple[Tensor, Tensor]:
        every = torch.arange(self.users, device=self.embedding.device)
        return self.user_rows(every), super().vectors()[1]

    def knots(self) -> Tensor:
        """Places knots between the log odds of the shares of the silo's users, (K,).

        The usual share is among them. The lengths are analytic within pi / 3 of the real line unless G and E of an item
        are opposite by more than a correlation of -.5, from which the number of knots follows.
        """
        usual, *ends = (self.sparsity[0] * self.usual_logs + self.sparsity[1]).double().tolist()
        half = abs(ends[1] - ends[0]) / 2
        if half < 1e-6:
            return torch.tensor([usual], dtype=torch.float64)
        rate = np.arcsinh(np.pi / 3 / half)
        count = int(np.clip(np.ceil(-np.log(PRECISE) / rate), 2, MOST_KNOTS))
        found = sum(ends) / 2 + half * np.cos(np.pi * np.arange(count) / (count - 1))
        apart = np.abs(found - usual)
        found = found[apart > APART * half]
        return torch.from_numpy(np.append(found, usual))

    def folded_items(self) -> Tensor:
        """Computes EF at the share of a usual user of the silo.

        Nothing but the basket is known of its user. The shift c is left out, as in the form at rest: <u, c> is the same
        for all items.
        """
        g, e = self.vectors()[1].chunk(2, dim=1)
        share, values = self.shares(self.usual_logs[:1]), self.fusion_values()
        mixed = share * g + (1 - share) * e
        return values.normalise(mixed) - values.shift if self.switches.normalise else mixed

    def basket_nodes(self, vectors: Tensor) -> Nodes:
        return to_nodes(self.wide_users(vectors, self.shares(self.usual_logs[:1])))


class SparsityAwareHead(Head):
    """Factored score of FedUTR-SAR.

    Frozen, it is a dot product, in which an item's length is interpolated between shares.
    """

    residual = True

    def __init__(self, encoder: SparsityAware) -> None:
        super().__init__()
        self._encoder = (encoder,)  # whose parameters are the encoder's, not the head's

    @property
    def encoder(self) -> SparsityAware:
        """Encoder that determines the knots of the frozen form."""
        return self._encoder[0]

    def pool_users(self, users: Nodes) -> Pooled:
        """Computes the users' factors [a u, (1 - a) u].

        Their scale is (a^2, 2 a (1 - a), (1 - a)^2), (B, 3).
        """
        vectors, bias, share = torch.split(users.layers[-1], [self.encoder.width, 1, 1], dim=1)
        weights = torch.cat([share**2, 2 * share * (1 - share), (1 - share) ** 2], dim=1)
        return Pooled(torch.cat([share * vectors, (1 - share) * vectors], dim=1), weights, bias[:, 0])

    def pool_items(self, items: Nodes) -> Pooled:
        """Computes the items' factors [G, E], each around its mean.

        Their scale is the variances and the covariance, (B, 3).
        """
        g, e = items.layers[-1].chunk(2, dim=1)
        if not self.encoder.switches.normalise:
            return Pooled(items.layers[-1], g.new_zeros(len(g), 3))
        g, e = g - g.mean(1, keepdim=True), e - e.mean(1, keepdim=True)
        variances = torch.stack([(g**2).mean(1), (g * e).mean(1), (e**2).mean(1)], dim=1)
        return Pooled(torch.cat([g, e], dim=1), variances + EPSILON)  # all three: a^2 + 2 a (1 - a) + (1 - a)^2 is 1

    def score(self, users: Pooled, items: Pooled) -> Tensor:
        return self._divided((users.embedding * items.embedding).sum(1), (users.scale * items.scale).sum(1)) + _bias(
            users
        )

    def score_all(self, users: Pooled, items: Pooled) -> Tensor:
        found = self._divided(users.embedding @ items.embedding.T, users.scale @ items.scale.T)
        return found + _bias(users)[:, None]

    def _divided(self, products: Tensor, variances: Tensor) -> Tensor:
        return products * torch.rsqrt(variances) if self.encoder.switches.normalise else products

    def user_side(self, users: Pooled) -> Side:
        if not self.encoder.switches.normalise:
            return embedding_side(users.embedding)
        odds = (users.scale[:, 0].double() / users.scale[:, 2].double()).log() / 2
        weights = _lagrange(odds, self.encoder.knots()) / users.scale[:, 2:].double().sqrt()
        return embedding_side(_outer(weights.to(users.embedding), users.embedding))

    def item_side(self, items: Pooled) -> Side:
        if not self.encoder.switches.normalise:
            return embedding_side(items.embedding).column_major()
        odds = self.encoder.knots().exp()
        weights = torch.stack([odds**2, 2 * odds, torch.ones_like(odds)])
        lengths = torch.rsqrt(items.scale.double() @ weights)
        return embedding_side(_outer(lengths.to(items.embedding), items.embedding)).column_major()

    def predictor(self) -> Predictor:
        """Makes an MLP that adds nothing."""
        nothing = np.zeros(0, dtype=np.float32)
        return Predictor(np.zeros((0, 0), dtype=np.float32), nothing, np.float32(0.0))


def _bias(users: Pooled) -> Tensor:
    assert users.bias is not None
    return users.bias


def _outer(weights: Tensor, rows: Tensor) -> Tensor:
    """Computes the outer product of each row of weights with each row, (B, K q).

    weights: (B, K). rows: (B, q).
    """
    return (weights[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)


def _lagrange(values: Tensor, knots: Tensor) -> Tensor:
    """Computes the Lagrange weights of the knots (K,) at these values (B,), (B, K).

    Beyond the knots they are as at the last.
    """
    values = values.clamp(knots.min(), knots.max())
    columns = []
    for place, knot in enumerate(knots):
        others = torch.cat([knots[:place], knots[place + 1 :]])
        columns.append(((values[:, None] - others) / (knot - others)).prod(1))
    return torch.stack(columns, dim=1)


def build(given: ModelInputs) -> Model:
    """Makes the model with the score f_ui = <u, EF_ui>."""
    encoder = SparsityAware(given)
    return Model(encoder, SparsityAwareHead(encoder))
