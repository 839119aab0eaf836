"""Encoder of LPSFed and its variants: embeddings by low-pass convolutions on the spectrum.

Low-pass Graph Convolutional Network for Recommendation. Yu, Zhang, Qin. AAAI 2022. Shapes: M users, N items, Phi
cut-off, q embedding width, L layers, B rows.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from client_service.models.encoder import Encoder, Nodes
from client_service.models.initial_filter import Start, edge_weight, node_degrees, normalising_exponents
from client_service.models.model import ModelInputs
from client_service.models.parameter_transfer import MatchedRows
from shared.method.graph import degree_power
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

SATURATION = 2.0  # |f| of the start stays below this for 99 % of all pairs, so that tanh f still has a gradient
CALIBRATION_PAIRS = 100_000
CALIBRATION_BLOCK = 4096  # of these pairs whose rows are in memory at a time
RANDOM_DEVIATION = 0.1


class FreeKernels(nn.Module):
    """Kernels with one free number for each eigenvalue and layer, (L, Phi).

    They begin at one.
    """

    def __init__(self, layers: int, frequencies: int) -> None:
        super().__init__()
        self.kernels = nn.Parameter(torch.ones(layers, frequencies))

    def forward(self) -> Tensor:
        return self.kernels


class _RowsAndProjection(torch.autograd.Function):
    """Autograd function of Z[nodes] and P^T Z together.

    Z is large: its gradient is written once, dense, and the rows are added to it.
    """

    @staticmethod
    def forward(ctx: Any, embedding: Tensor, basis: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(basis, nodes)
        return embedding[nodes], basis.T @ embedding

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        basis, nodes = ctx.saved_tensors
        of_rows, of_projection = gradients
        return (basis @ of_projection).index_add_(0, nodes, of_rows), None, None


class LowPass(Encoder):
    """Low-pass encoder: Z(0..L) by Eq. 1-3 in the graph's lowest frequencies.

    `response` returns the kernels (L, Phi). For the head: `residual`, does Z(0) begin at a filter, and `alpha`, its
    weight.
    """

    row_kinds = MappingProxyType({"embedding": "nodes"})
    basis: Tensor
    edge_step: Tensor
    degree: Tensor
    foreign: Tensor | None
    user_scale: Tensor
    item_scale: Tensor
    origin: Tensor

    def __init__(self, given: ModelInputs, response: nn.Module) -> None:
        super().__init__()
        start = given.start
        self.users, self.items = given.interactions.shape
        self.residual, self.exponents = start is not None, (0.0, 0.0) if start is None else start.exponents
        self._keep_graph(given.spectrum, given.interactions)
        self.alpha = self._keep_start(start, given.method.width)
        self.embedding = nn.Parameter(self.origin.clone())
        self.response = response
        self._settled: list[Tensor] | None = None
        self._first_item = self.users  # row of edge_step

    def _keep_graph(self, spectrum: Spectrum, interactions: sparse.csr_array) -> None:
        """Stores the basis P, the degrees, and the step of each edge.

        A step is the summand of one edge in a node's row. The summand is before division by that node's degree.
        """
        sides, self.normalising = node_degrees(spectrum, interactions), normalising_exponents(spectrum)
        entry = np.concatenate(
            [degree_power(side, -exponent) for side, exponent in zip(sides, self.normalising, strict=True)]
        )
        basis = spectrum.basis
        self._keep(basis=basis)
        basis *= edge_weight(spectrum) * entry[:, None]
        basis /= spectrum.singular
        self._keep(edge_step=basis, degree=np.concatenate(sides))

    def _keep_start(self, start: Start | None, width: int) -> float:
        """Stores Z(0) and the degree scales at which training begins.

        Returns the base path's weight alpha_0.
        """
        self.register_buffer("foreign", None, persistent=False)
        if start is None:
            noise = np.random.default_rng(0).normal(0.0, RANDOM_DEVIATION, (self.users + self.items, width))
            self._keep(origin=noise, user_scale=np.ones(self.users), item_scale=np.ones(self.items))
            return 1.0
        # Entries of order one: Adam's first steps drown smaller ones.
        rows = _pad_columns(np.concatenate([start.users, start.items]) * start.size, width)
        self._keep(origin=rows, user_scale=start.user_scale, item_scale=start.item_scale)
        if start.foreign is not None:
            self._keep(foreign=_pad_columns(start.foreign * start.size, width))
        return _calibrate(rows, start)

    def _keep(self, **constants: np.ndarray) -> None:
        for name, values in constants.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.get_default_dtype()), persistent=False)

    def coefficients(self, first: Tensor | None = None) -> list[Tensor]:
        """Computes P^T Z(l) for l = 0..L, each (Phi, q).

        first: P^T Z(0) of the own nodes where it is known already. Since P^T P = I, Eq. 3 becomes P^T Z(l) = diag(k(l))
        P^T Z(l-1): one product with all nodes, not 2 L. In the frequencies of all silos that holds of all their nodes,
        and the other silos' stay where they begin.
        """
        own = self.basis.T @ self.embedding if first is None else first
        projections = [own if self.foreign is None else own + self.foreign]
        for kernel in self.response():
            projections.append(kernel[:, None] * projections[-1])
        return projections

    def gather(self, nodes: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns rows of Z(0) (B, q) and all coefficients.

        Both uses of Z(0) have one gradient together.
        """
        rows, first = _RowsAndProjection.apply(self.embedding, self.basis, nodes)  # type: ignore[no-untyped-call]
        return rows, self.coefficients(first)

    def layers(self, nodes: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> list[Tensor]:
        """Computes Z(0..L) (Eq. 3) of the given nodes, each (B, q).

        Items follow users in the numbering. `rows` are the nodes' own rows of Z(0), where they have been gathered
        already.
        """
        basis, own = self.basis[nodes], self.embedding[nodes] if rows is None else rows
        return [own, *(basis @ c for c in coefficients[1:])]

    def layers_without_edge(
        self,
        nodes: Tensor,
        others: Tensor,
        coefficients: list[Tensor],
        rows: Tensor | None = None,
        exponent: float = 0.5,
    ) -> list[Tensor]:
        """Computes Z(0..L) of nodes without the edge to the node beside each, each (B, q).

        A row of P is the sum of its edges' steps over the root of the degree, so that removing one edge is a
        subtraction. exponent: 1/2 for that root, or the exponent by which the graph is normalised in its place.
        """
        # Paper: a training pair is scored by the graph with its edge; here: by the graph without it, because such a
        # pair shows nothing about pairs without an edge.
        degree, basis = self.degree[nodes][:, None], self.basis[nodes]
        reduced = (degree**exponent * basis - self.edge_step[others]) / (degree - 1).clamp(min=1) ** exponent
        reduced = torch.where(degree > 1, reduced, 0.0)
        own = self.embedding[nodes] if rows is None else rows
        return [own + (reduced - basis) @ coefficients[0], *(reduced @ c for c in coefficients[1:])]

    def inference_coefficients(self) -> list[Tensor]:
        """Returns the coefficients, computed once for a model that no longer changes."""
        return self.coefficients() if self._settled is None else self._settled

    @property
    def item_step(self) -> Float32:
        """Summand of each item in a basket's row of P, (N, Phi).

        The row is divided by the basket's degree afterwards.
        """
        return self.edge_step[self._first_item :].cpu().numpy()

    def fold_in(self, items: Tensor, coefficients: list[Tensor]) -> list[Tensor]:
        """Computes Z(0..L), each (1, q), of a user outside the graph with these items (b,).

        p = d^-1/2 r D_i^-1/2 V S^-1 / sqrt 2. 1/2 are the exponents of the graph's normalisation, which the frequencies
        of all silos have otherwise.
        """
        degree = max(1, len(items))
        basis = self.edge_step[items + self._first_item].sum(0, keepdim=True) / degree ** self.normalising[0]
        return [basis @ c for c in coefficients]

    def user_nodes(self, users: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> Nodes:
        """Returns these users with their degree scales; `rows` as in `layers`."""
        return Nodes(self.layers(users, coefficients, rows), self.user_scale[users])

    def item_nodes(self, items: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> Nodes:
        """Returns these items with their degree scales; `rows` as in `layers`."""
        return Nodes(self.layers(items + self.users, coefficients, rows), self.item_scale[items])

    def nodes_without_edge(
        self, users: Tensor, items: Tensor, coefficients: list[Tensor], rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Nodes, Nodes]:
        """Returns users and items (B,), each without the edge between them, degree scales included."""
        nodes, (own_left, own_right) = items + self.users, rows or (None, None)
        of_users, of_items = self.normalising
        left = self.layers_without_edge(users, nodes, coefficients, own_left, of_users)
        right = self.layers_without_edge(nodes, users, coefficients, own_right, of_items)
        return Nodes(left, self._reduced_scale(users, 0)), Nodes(right, self._reduced_scale(nodes, 1))

    def _reduced_scale(self, nodes: Tensor, side: int) -> Tensor:
        return (self.degree[nodes] - 1).clamp(min=1) ** self.exponents[side]

    def batch(
        self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool
    ) -> tuple[Nodes, Nodes, Nodes]:
        nodes = torch.cat([users, items + self.users, negatives + self.users])
        rows, coefficients = self.gather(nodes)
        count = len(users)
        left, right, others = rows[:count], rows[count : 2 * count], rows[2 * count :]
        if leave_one_out:
            u, v = self.nodes_without_edge(users, items, coefficients, (left, right))
        else:
            u, v = self.user_nodes(users, coefficients, left), self.item_nodes(items, coefficients, right)
        return u, v, self.item_nodes(negatives, coefficients, others)

    def all_nodes(self) -> tuple[Nodes, Nodes]:
        coefficients, device = self.coefficients(), self.embedding.device
        users = self.user_nodes(torch.arange(self.users, device=device), coefficients)
        return users, self.item_nodes(torch.arange(self.items, device=device), coefficients)

    def basket(self, items: Tensor) -> Nodes:
        coefficients = self.inference_coefficients()
        scale = torch.tensor([float(len(items)) ** self.exponents[0]], device=items.device)
        return Nodes(self.fold_in(items, coefficients), scale)

    @property
    def starts_at_filter(self) -> bool:
        return self.residual

    @torch.no_grad()
    def align_with(self, trained: Tensor, rows: MatchedRows) -> None:
        """Rotates the filter's embeddings towards the trained ones of the same nodes.

        On another shard a column may stand for another vector of the spectrum. Scores are inner products, which no
        rotation changes. The frequencies of all silos are the same everywhere.
        """
        if self.residual and self.foreign is None:
            own, other = (part.double().cpu().numpy() for part in (self.origin, trained))
            left, _, right = np.linalg.svd(own[rows.new].T @ other[rows.old], full_matrices=False)
            self.embedding.copy_(torch.from_numpy(own @ (left @ right)))

    def embed_baskets(self, baskets: sparse.csr_array) -> Tensor:
        """Computes Z(0) of baskets (B, N): the low-pass part of `fold_in`."""
        degree = np.maximum(np.diff(baskets.indptr), 1)[:, None] ** self.normalising[0]
        return torch.from_numpy((baskets @ self.item_step) / degree).to(self.embedding) @ self.coefficients()[0]

    def prepare_inference(self) -> None:
        with torch.no_grad():
            self._settled = self.coefficients()

    @torch.no_grad()
    def drop_training_state(self) -> None:
        if self._first_item == 0:
            return
        self.prepare_inference()
        self.edge_step, self._first_item = self.edge_step[self._first_item :].clone(), 0
        nothing = self.edge_step.new_empty(0)
        self.basis, self.origin, self.embedding = nothing, nothing, nn.Parameter(nothing, requires_grad=False)


def _pad_columns(rows: np.ndarray, width: int) -> np.ndarray:
    """Pads rows with zero columns up to the MLPs' width."""
    return np.pad(rows, ((0, 0), (0, max(0, width - rows.shape[1]))))


def _calibrate(rows: np.ndarray, start: Start) -> float:
    """Computes alpha_0, so that the start's scores do not saturate tanh.

    The 99th percentile of |f| over random pairs becomes SATURATION.
    """
    generator = np.random.default_rng(0)
    users = generator.integers(0, len(start.users), CALIBRATION_PAIRS)
    items = generator.integers(0, len(start.items), CALIBRATION_PAIRS)
    blocks = np.split(np.arange(CALIBRATION_PAIRS), range(CALIBRATION_BLOCK, CALIBRATION_PAIRS, CALIBRATION_BLOCK))
    products = [(rows[users[some]] * rows[len(start.users) + items[some]]).sum(1) for some in blocks]
    f = np.concatenate(products) * start.user_scale[users] * start.item_scale[items]
    high = float(np.quantile(np.abs(f), 0.99))
    return SATURATION / high if high > 0 else 1.0
