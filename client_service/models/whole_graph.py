"""Convolutions on the whole user-item graph, the base of encoders such as NGCF."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from client_service.models.encoder import Encoder, Nodes
from client_service.models.model import Model, ModelInputs, PooledMLPs
from shared.errors import SettingsError
from shared.method.graph import degree_power, degrees, normalise


class _Product(torch.autograd.Function):
    """Autograd function of A x; its gradient is A g.

    A is symmetric and constant, so that it is never transposed.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, rows: Tensor) -> Tensor:
        ctx.matrix = matrix
        return _multiply(matrix, rows.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, _multiply(ctx.matrix, gradients[0])


class Propagation(nn.Module):
    """Product with the symmetric matrix A of a user-item graph.

    x (M + N, d) to A x; A has `weights` (M, N) above its diagonal and transposed below.
    """

    matrix: Tensor

    def __init__(self, weights: sparse.csr_array) -> None:
        super().__init__()
        self.register_buffer("matrix", _compress(sparse.csr_array(symmetric(weights))), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = _Product.apply(self.matrix, rows)  # type: ignore[no-untyped-call]
        return found


def _multiply(matrix: Tensor, rows: Tensor) -> Tensor:
    """Computes A x by bags of weighted rows.

    On a CPU that is nearly three times as fast as A @ x.
    """
    if rows.is_cuda:
        return matrix @ rows
    starts, columns, weights = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    return embedding_bag(columns, rows, starts, per_sample_weights=weights, mode="sum", include_last_offset=True)


def symmetric(weights: sparse.csr_array) -> sparse.csr_array:
    """Builds the symmetric matrix [[0, W], [W^T, 0]], (M + N, M + N)."""
    half = sparse.coo_array(weights)
    users, items = half.row, half.col + weights.shape[0]
    rows, columns = np.concatenate([users, items]), np.concatenate([items, users])
    size = sum(weights.shape)
    return sparse.csr_array((np.concatenate([half.data, half.data]), (rows, columns)), shape=(size, size))


def _compress(matrix: sparse.csr_array) -> Tensor:
    matrix.sort_indices()
    values = torch.tensor(matrix.data, dtype=torch.get_default_dtype())
    rows, columns = (torch.from_numpy(part.astype(np.int32)) for part in (matrix.indptr, matrix.indices))
    return torch.sparse_csr_tensor(rows, columns, values, size=matrix.shape)


def _silence_beta_warning() -> None:
    """Triggers torch's warning on compressed rows once, silently, before any training.

    Torch warns once a process that they are a beta.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))


_silence_beta_warning()


DEVIATION = 0.1  # of Z(0), which starts at random for every `start`


class WholeGraph(Encoder):
    """Encoder whose layers follow from convolutions on the whole graph.

    Z(0) of all nodes is trained, Z(l) follows from Z(l-1) and A_hat Z(l-1). A training pair's own edge stays in the
    graph: leave_one_out changes nothing.
    """

    row_kinds = MappingProxyType({"embedding": "nodes"})
    origin: Tensor
    item_power: Tensor

    def __init__(self, given: ModelInputs) -> None:
        super().__init__()
        method = given.method
        if method.signal == "trained":
            raise SettingsError(
                f"signal: expected 'eigenvalues' with the model {method.model!r}, which has no kernels, got 'trained'"
            )
        self.users, self.items = given.interactions.shape
        self.convolutions = method.layers
        noise = np.random.default_rng(0).normal(0.0, DEVIATION, (self.users + self.items, method.width))
        item_power = degree_power(degrees(given.interactions)[1], -0.5)
        for name, values in {"origin": noise, "item_power": item_power}.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.get_default_dtype()), persistent=False)
        self.propagation = Propagation(normalise(given.interactions))
        self.embedding = nn.Parameter(self.origin.clone())

    @abstractmethod
    def convolve(self, number: int, rows: Tensor, neighbours: Tensor) -> Tensor:
        """Computes the next layer of R nodes from Z(number) and A_hat Z(number), each (R, d)."""

    def layers(self) -> list[Tensor]:
        """Computes Z(0..L) of all nodes, each (M + N, d)."""
        layers: list[Tensor] = [self.embedding]
        for number in range(self.convolutions):
            layers.append(self.convolve(number, layers[-1], self.propagation(layers[-1])))
        return layers

    def batch(
        self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool
    ) -> tuple[Nodes, Nodes, Nodes]:
        del leave_one_out
        layers = self.layers()
        return _rows(layers, users), _rows(layers, items + self.users), _rows(layers, negatives + self.users)

    def all_nodes(self) -> tuple[Nodes, Nodes]:
        layers, nodes = self.layers(), torch.arange(self.users + self.items, device=self.embedding.device)
        return _rows(layers, nodes[: self.users]), _rows(layers, nodes[self.users :])

    def embed_baskets(self, baskets: sparse.csr_array) -> Tensor:
        """Computes the mean of the items' rows of Z(0) for each basket."""
        rows = baskets @ self.embedding[self.users :].detach().cpu().numpy()
        return torch.from_numpy(rows / np.maximum(np.diff(baskets.indptr), 1)[:, None]).to(self.embedding)

    def basket(self, items: Tensor) -> Nodes:
        """Computes the node of a basket; its Z(0) is the mean of the items' rows.

        The further layers are those that it would have, had the items' own rows not been changed by it.
        """
        baskets = torch.zeros(1, self.items, device=items.device)
        baskets[0, items] = 1.0
        degree = baskets.sum(1, keepdim=True).clamp(min=1)
        every = self.layers()
        layers = [baskets @ every[0][self.users :] / degree]
        reach = baskets * self.item_power / degree.sqrt()  # A_hat's row of the basket
        for number, layer in enumerate(every[:-1]):
            layers.append(self.convolve(number, layers[-1], reach @ layer[self.users :]))
        return Nodes(layers, torch.ones(1, device=items.device))


def _rows(layers: list[Tensor], nodes: Tensor) -> Nodes:
    return Nodes([layer[nodes] for layer in layers], torch.ones(len(nodes), device=nodes.device))


def model_with_mlps(encoder: WholeGraph, given: ModelInputs) -> Model:
    """Builds the model of an encoder beneath both MLPs, without a base path."""
    return Model(encoder, PooledMLPs(given.method))
