"""Spectrum -> embeddings by low-pass convolutions -> pooled embeddings -> scores.

Low-pass Graph Convolutional Network for Recommendation. Yu, Zhang, Qin. AAAI 2022; with the pooling and predictive
MLPs of LPSFed (ICLR 2026). Shapes: M users, N items, Phi cut-off, q embedding width, d MLP width, L layers, B rows,
n candidates of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from client_service.models.model import Ingredients, Model
from client_service.models.start import Start
from shared.method.graph import degrees, power
from shared.method.spectrum import Spectrum

SATURATION = 2.0  # |f| of the start stays below this for 99 % of all pairs, so that tanh f still has a gradient
CALIBRATION_PAIRS = 100_000
RANDOM_DEVIATION = 0.1


class TwoLayers(nn.Module):
    """output(tanh(hidden(x))), (B, in) -> (B, out): the form of both MLPs."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(torch.tanh(self.hidden(x)))
        return result


@dataclass(frozen=True)
class Pooled:
    """Pooled rows of users or of items (B, q) with their degree scale (B,), as the score needs them."""

    embedding: Tensor
    scale: Tensor


class _RowsAndProjection(torch.autograd.Function):
    """Z[nodes] and P^T Z together. Z is large: its gradient is written once, dense, and the rows are added to it."""

    @staticmethod
    def forward(ctx: Any, embedding: Tensor, basis: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(basis, nodes)
        return embedding[nodes], basis.T @ embedding

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        basis, nodes = ctx.saved_tensors
        of_rows, of_projection = gradients
        return (basis @ of_projection).index_add_(0, nodes, of_rows), None, None


class LGCN(Model):
    """The client's model. Only `pooling.*` and `predictive.*` are ever shared; everything else is private."""

    exchangeable: tuple[str, ...] = ("pooling.", "predictive.")
    basis: Tensor
    edge_step: Tensor
    degree: Tensor
    user_scale: Tensor
    item_scale: Tensor
    origin: Tensor
    alpha_start: Tensor

    def __init__(self, given: Ingredients):
        super().__init__()
        start, method = given.start, given.method
        self.users, self.items = given.interactions.shape
        self.width, self.residual = method.width, start is not None
        self.exponent = 0.0 if start is None else start.exponent
        self._keep_graph(given.spectrum, given.interactions)
        self._keep_start(start)
        self.embedding = nn.Parameter(self.origin.clone())
        self.kernels = nn.Parameter(torch.ones(method.layers, len(given.spectrum.singular)))
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.pooling = TwoLayers((method.layers + 1) * self.width, self.width, self.width)
        self.predictive = TwoLayers(3 * self.width, self.width, 1)

    def _keep_graph(self, spectrum: Spectrum, interactions: sparse.csr_array) -> None:
        """P; what one edge adds to the row of the node at its other end, before that node's degree; degrees."""
        degree = np.concatenate(degrees(interactions))
        step = power(degree, -0.5)[:, None] * spectrum.basis / spectrum.singular
        self.register_buffer("basis", _tensor(spectrum.basis), persistent=False)
        self.register_buffer("edge_step", _tensor(step), persistent=False)
        self.register_buffer("degree", _tensor(degree), persistent=False)

    def _keep_start(self, start: Start | None) -> None:
        if start is None:
            shape = (self.users + self.items, self.width)
            noise = np.random.default_rng(0).normal(0.0, RANDOM_DEVIATION, shape)
            return self._register_start(noise, np.ones(self.users), np.ones(self.items), alpha=1.0)
        scale = np.sqrt((self.users + self.items) / 2.0)  # entries of order one; Adam's first steps drown smaller ones
        rows = np.concatenate([start.users, start.items]) * scale
        rows = np.pad(rows, ((0, 0), (0, max(0, self.width - rows.shape[1]))))
        return self._register_start(rows, start.user_scale, start.item_scale, alpha=_calibrated(rows, start))

    def _register_start(self, rows: np.ndarray, user_scale: np.ndarray, item_scale: np.ndarray, alpha: float) -> None:
        self.register_buffer("origin", _tensor(rows), persistent=False)
        self.register_buffer("user_scale", _tensor(user_scale), persistent=False)
        self.register_buffer("item_scale", _tensor(item_scale), persistent=False)
        self.register_buffer("alpha_start", _tensor(np.asarray(alpha)), persistent=False)

    @property
    def alpha(self) -> Tensor:
        """Weight of the base path, alpha_0 exp(a)."""
        return self.alpha_start * torch.exp(self.log_alpha)

    def coefficients(self, first: Tensor | None = None) -> list[Tensor]:
        """P^T Z(l) for l = 0..L, each (Phi, q); `first` is P^T Z(0) where somebody has it already.

        Since P^T P = I, Eq. 3 becomes P^T Z(l) = diag(k(l)) P^T Z(l-1): one product with all nodes, not 2 L.
        """
        found = [self.basis.T @ self.embedding if first is None else first]
        for kernel in self.kernels:
            found.append(kernel[:, None] * found[-1])
        return found

    def gather(self, nodes: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Rows of Z(0) (B, q) and all coefficients, for training: with one gradient of Z(0), not one for each use."""
        rows, first = _RowsAndProjection.apply(self.embedding, self.basis, nodes)  # type: ignore[no-untyped-call]
        return rows, self.coefficients(first)

    def layers(self, nodes: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> list[Tensor]:
        """Z(0..L) (Eq. 3) of the given nodes, each (B, q). Items follow users in the numbering.

        `rows` are the nodes' own rows of Z(0), where they have been gathered already.
        """
        basis, own = self.basis[nodes], self.embedding[nodes] if rows is None else rows
        return [own, *(basis @ c for c in coefficients[1:])]

    def layers_without(
        self, nodes: Tensor, others: Tensor, coefficients: list[Tensor], rows: Tensor | None = None
    ) -> list[Tensor]:
        """Z(0..L) of nodes as if the edge to the node beside each were not there, each (B, q).

        # Paper: a training pair is scored by the graph that holds it; here: by the graph without it, because such a
        pair teaches nothing about pairs that the graph does not hold. A row of P is the sum of its edges' steps over
        the root of the degree, so that taking one edge out is a subtraction.
        """
        degree, basis = self.degree[nodes][:, None], self.basis[nodes]
        reduced = (degree.sqrt() * basis - self.edge_step[others]) / (degree - 1).clamp(min=1).sqrt()
        reduced = torch.where(degree > 1, reduced, 0.0)
        own = self.embedding[nodes] if rows is None else rows
        return [own + (reduced - basis) @ coefficients[0], *(reduced @ c for c in coefficients[1:])]

    def fold_in(self, baskets: Tensor, coefficients: list[Tensor]) -> list[Tensor]:
        """Z(0..L) of 0/1 baskets (B, N) of somebody who is not in the graph: p = d^-1/2 r D_i^-1/2 V S^-1 / sqrt 2."""
        degree = baskets.sum(1, keepdim=True).clamp(min=1)
        basis = (baskets @ self.edge_step[self.users :]) / degree.sqrt()
        return [basis @ c for c in coefficients]

    def pool(self, layers: list[Tensor]) -> Tensor:
        """Pooled embedding (Eq. 4), (B, q): the layers' mean plus the MLP of their d lowest frequencies.

        # Paper: the MLP alone; here: a residual path beside it, because only so can training start at the filter.
        """
        found: Tensor = self.pooling(torch.cat([layer[:, : self.width] for layer in layers], dim=1))
        if not self.residual:
            return found
        return torch.stack(layers).mean(0) + nn.functional.pad(found, (0, layers[0].shape[1] - self.width))

    def pooled_users(self, users: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> Pooled:
        return Pooled(self.pool(self.layers(users, coefficients, rows)), self.user_scale[users])

    def pooled_without(
        self, users: Tensor, items: Tensor, coefficients: list[Tensor], rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Pooled, Pooled]:
        """Users and items (B,), each without the edge between them, degree scales included."""
        nodes, (own_left, own_right) = items + self.users, rows or (None, None)
        left = self.pool(self.layers_without(users, nodes, coefficients, own_left))
        right = self.pool(self.layers_without(nodes, users, coefficients, own_right))
        return Pooled(left, self._reduced_scale(users)), Pooled(right, self._reduced_scale(nodes))

    def _reduced_scale(self, nodes: Tensor) -> Tensor:
        return (self.degree[nodes] - 1).clamp(min=1) ** self.exponent

    def pooled_baskets(self, baskets: Tensor, coefficients: list[Tensor]) -> Pooled:
        """As `pooled_users`, of baskets (B, N) that are no row of the graph."""
        return Pooled(self.pool(self.fold_in(baskets, coefficients)), baskets.sum(1) ** self.exponent)

    def pooled_items(self, items: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> Pooled:
        return Pooled(self.pool(self.layers(items + self.users, coefficients, rows)), self.item_scale[items])

    def score(self, users: Pooled, items: Pooled) -> Tensor:
        """f (Eq. 5, before tanh) of each user row with the item row beside it: (B, q), (B, q) -> (B,)."""
        u, v = users.embedding[:, : self.width], items.embedding[:, : self.width]
        found: Tensor = self.predictive(torch.cat([u, v, u * v], dim=1))[:, 0]
        return found + self.base(users, items) if self.residual else found

    def base(self, users: Pooled, items: Pooled) -> Tensor:
        """The base path's part of f of each user row with the item row beside it, (B,)."""
        return self.alpha * (users.embedding * items.embedding).sum(1) * users.scale * items.scale

    def score_all(self, users: Pooled, items: Pooled) -> Tensor:
        """f of every user row with every item row: (B, q), (n, q) -> (B, n).

        The first layer is split into its u, v and u * v parts. W_u u + W (u * v) is written (W_u + W diag v) u: one
        GEMM with the user rows, whose bias is the v part, instead of a (B, n, 3 d) input.
        """
        u, v = users.embedding[:, : self.width], items.embedding[:, : self.width]
        on_u, on_v, on_both = self.predictive.hidden.weight.chunk(3, dim=1)
        joint = (v[:, None, :] * on_both + on_u).reshape(-1, self.width)  # (n d, d)
        bias = (v @ on_v.T + self.predictive.hidden.bias).reshape(-1)  # (n d,)
        hidden = torch.tanh(torch.addmm(bias, u, joint.T)).view(len(u), len(v), self.width)
        found: Tensor = self.predictive.output(hidden)[..., 0]
        return found + self.base_all(users, items) if self.residual else found

    def base_all(self, users: Pooled, items: Pooled) -> Tensor:
        """The base path's part of f of every user row with every item row, (B, n): one GEMM."""
        return self.alpha * (users.embedding @ items.embedding.T) * users.scale[:, None] * items.scale

    def scores(self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool) -> tuple[Tensor, Tensor]:
        nodes = torch.cat([users, items + self.users, negatives + self.users])
        rows, coefficients = self.gather(nodes)
        count = len(users)
        left, right, others = rows[:count], rows[count : 2 * count], rows[2 * count :]
        if leave_one_out:
            u, v = self.pooled_without(users, items, coefficients, (left, right))
        else:
            u, v = self.pooled_users(users, coefficients, left), self.pooled_items(items, coefficients, right)
        return self.score(u, v), self.score_all(u, self.pooled_items(negatives, coefficients, others))

    @torch.no_grad()
    def pull_to_start(self, share: float) -> None:
        self.embedding.lerp_(self.origin, share)

    def least_mlp(self) -> Tensor:
        """What the predictive MLP adds to f at the least: |tanh| <= 1 bounds it by its output weights."""
        return self.predictive.output.bias[0] - self.predictive.output.weight.abs().sum()


def _tensor(values: np.ndarray) -> Tensor:
    return torch.tensor(values, dtype=torch.get_default_dtype())


def _calibrated(rows: np.ndarray, start: Start) -> float:
    """alpha_0: the 99th percentile of the start's |f| over random pairs becomes SATURATION."""
    generator = np.random.default_rng(0)
    users = generator.integers(0, len(start.users), CALIBRATION_PAIRS)
    items = generator.integers(0, len(start.items), CALIBRATION_PAIRS)
    f = (rows[users] * rows[len(start.users) + items]).sum(1) * start.user_scale[users] * start.item_scale[items]
    high = float(np.quantile(np.abs(f), 0.99))
    return SATURATION / high if high > 0 else 1.0
