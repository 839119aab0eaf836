"""UniFilter: labels of nodes by one polynomial filter of their features, and a small network.

Huang, Wang, Li, Lio. How Universal Polynomial Bases Enhance Spectral Graph Neural Networks. ICML 2024. Shapes: n nodes,
F features, K order, h width, o outputs: one for two classes, c for more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.models.encoders.masked import WeightMask, unmasked_name
from client_service.models.nodes.spectral_bases import (
    UNKNOWN_HOMOPHILY,
    SpectralBases,
    mixed_bases,
    propagation_matrix,
)
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.tensors import count_outputs


class GraphData:
    """Tensors of a silo's graph that a network reads and never trains.

    Copies of the network share them.
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __deepcopy__(self, memo: dict[int, object]) -> GraphData:
        return self

    def to_device(self, device: torch.device) -> GraphData:
        """Moves the tensors to a device once, and returns itself."""
        if any(value.device != device for value in self.tensors.values()):
            self.tensors = {name: value.to(device) for name, value in self.tensors.items()}
        return self


class SeededDropout(nn.Module):
    """Dropout that draws by a seed, so that a repeated round draws the same."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.seed, self.draws = share, 0, 0

    def restart(self, seed: int) -> None:
        """Starts the draws anew from this seed."""
        self.seed, self.draws = seed, 0

    def forward(self, values: Tensor) -> Tensor:
        """Sets some numbers to 0 while training, and scales the others up."""
        if not self.training or self.share == 0:
            return values
        generator = torch.Generator().manual_seed((self.seed + self.draws) % (1 << 63))
        self.draws += 1
        kept = torch.rand(values.shape, generator=generator).to(values.device) >= self.share
        return values * kept / (1.0 - self.share)


class SharedFilter(nn.Module):
    """Filter with one coefficient for each basis, (K + 1,), alike for all features."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((order + 1,), 1.0 / (order + 1)))


class UniFilter(nn.Module):
    """UniFilter network: a polynomial filter, a hidden layer and a predictive one.

    Logits = predictive(ReLU(hidden(sum_k w_k basis_k))). Its coefficients and both layers can be exchanged; nothing
    else is trained.
    """

    # Paper: layers without a bias; here: with one, because dense features are neither centred nor scaled.
    def __init__(self, bases: SpectralBases, width: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        order, _, features = bases.others.shape
        first = torch.from_numpy(bases.first.toarray().astype(np.float32))
        self.data = GraphData(first=first, others=torch.from_numpy(bases.others))
        self.coefficients = bases.coefficients
        self.filter = SharedFilter(order)
        self.dropout = SeededDropout(dropout)
        self.hidden, self.predictive = nn.Linear(features, width), nn.Linear(width, outputs)

    def forward(self, rows: Tensor | None = None) -> Tensor:
        """Computes logits of these nodes, (B, o), or of all nodes without rows."""
        data = self.data.to_device(self.filter.weight.device)
        first, others = data["first"], data["others"]
        if rows is not None:
            first, others = first[rows], others[:, rows]
        return self.label_filtered(first * self.filter.weight[0] + torch.tensordot(self.filter.weight[1:], others, 1))

    def label_filtered(self, filtered: Tensor) -> Tensor:
        """Computes logits (B, o) of nodes from their filtered features, (B, F)."""
        logits: Tensor = self.predictive(torch.relu(self.hidden(self.dropout(filtered))))
        return logits

    @torch.no_grad()
    def frozen_arrays(self) -> dict[str, Float32]:
        """Returns coefficients and layers by the names under which they are exchanged."""
        values: dict[str, Tensor] = {"filter.weight": self.filter.weight}
        for name, layer in (("hidden", self.hidden), ("predictive", self.predictive)):
            values |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
        return {name: value.detach().cpu().numpy() for name, value in values.items()}

    @torch.no_grad()
    def label_new_nodes(self, powers: Float64) -> Tensor:
        """Computes logits (m, o) of nodes outside the graph.

        powers: P^k x, (K + 1, m, F).
        """
        weight = self.filter.weight.detach().cpu().double().numpy()
        mixed: Float64 = np.einsum("k,kjf->jf", weight, self.coefficients)
        filtered = np.einsum("jf,jmf->mf", mixed, powers)
        device = self.hidden.weight.device
        return self.label_filtered(torch.from_numpy(filtered.astype(np.float32)).to(device))


class MaskedUniFilter(UniFilter):
    """UniFilter with private masks on the weights of both layers (FED-PUB).

    A masked weight is weight * mask, entry by entry.
    """

    def __init__(self, bases: SpectralBases, width: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__(bases, width, outputs, dropout)
        for layer in (self.hidden, self.predictive):
            parametrize.register_parametrization(layer, "weight", WeightMask(layer.weight.detach()))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields weights under their exchanged names, and masks as "mask.<name of the weight>"."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield unmasked_name(name), parameter


def build_unifilter(shard: NodeShard, method: MethodSettings, kind: type[UniFilter] = UniFilter) -> UniFilter:
    """Builds a UniFilter of the shard's graph. Slow on large graphs."""
    nodes = method.nodes
    bases = mixed_bases(
        propagation_matrix(shard.adjacency), shard.features, nodes.order, training_homophily(shard), nodes.tau
    )
    return kind(bases, method.width, count_outputs(method), nodes.dropout)


def training_homophily(shard: NodeShard) -> float:
    """Computes h, the share of edges between training nodes whose labels are equal.

    .75 where no edge joins two training nodes.
    """
    known = shard.edge_homophily(shard.nodes_of(TRAIN))
    return UNKNOWN_HOMOPHILY if known is None else known


SIGNATURE_TAUS = {"signature_low": 1.0, "signature_high": 0.0}
"""Measures of FedGSP, each with the tau whose bases it describes: powers of the propagation, or bases at the angle."""


def measure_signature(shard: NodeShard, order: int, name: str) -> Float32:
    """Computes the leading direction of features in each basis 1 to K, (K, F).

    p^k (signature_low) and q^k (signature_high) are the first right singular vector of the centred basis (n, F), with
    its largest entry above 0.
    """
    # Paper: which numbers of a client p and q are is said in the main text alone; here: the released code's leading
    # directions, with a fixed sign, because distances between clients depend on it.
    propagation = propagation_matrix(shard.adjacency)
    bases = mixed_bases(propagation, shard.features, order, training_homophily(shard), SIGNATURE_TAUS[name])
    return np.stack([lead_direction(one.astype(np.float64)) for one in bases.others]).astype(np.float32)


def lead_direction(basis: Float64) -> Float64:
    """Computes the first right singular vector of the centred columns, (F,).

    Its largest entry is above 0; zeros if all columns are constant.
    """
    centred = basis - basis.mean(axis=0)
    products = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    values, vectors = np.linalg.eigh(products)
    if len(values) == 0 or values[-1] <= 0.0 or not np.isfinite(values[-1]):
        return np.zeros(basis.shape[1])
    lead = centred.T @ vectors[:, -1] if len(centred) < centred.shape[1] else vectors[:, -1]
    length = float(np.linalg.norm(lead))
    if length == 0.0:
        return np.zeros(basis.shape[1])
    largest = lead[np.argmax(np.abs(lead) > np.abs(lead).max() * (1 - 1e-9))]
    direction: Float64 = lead / length * np.sign(largest)
    return direction
