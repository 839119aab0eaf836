"""SAGE network: layers on a node's own hidden values, and on its neighbours' mean.

Hamilton, Ying, Leskovec. Inductive Representation Learning on Large Graphs. NeurIPS 2017; as a backbone with residual
connections in Platonov et al. A Critical Look at the Evaluation of GNNs under Heterophily. ICLR 2023. Shapes: n nodes,
F features, h width, L layers, o outputs.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from client_service.data.node_graphs import NodeShard
from client_service.models.nodes.unifilter import GraphData, SeededDropout
from shared.method.settings import MethodSettings
from shared.method.tensors import count_outputs


class NeighbourLayers(nn.Module):
    """Layers that add the mean of the neighbours to each node.

    L layers x + ReLU(own y + neighbours mean(y) + bias), y = gain norm(x) + shift. Parameters have the shapes (L, h, h)
    or (L, h).
    """

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.own, self.neighbours = (nn.Parameter(torch.zeros(layers, width, width)) for _ in range(2))
        self.bias, self.shift = (nn.Parameter(torch.zeros(layers, width)) for _ in range(2))
        self.gain = nn.Parameter(torch.ones(layers, width))

    def step(self, layer: int, values: Tensor, means: Tensor) -> Tensor:
        """Computes one layer of all nodes, (n, h) to (n, h).

        Each node is scaled by itself, so that a layer depends on no batch.
        """
        scaled = nn.functional.layer_norm(values, values.shape[1:], self.gain[layer], self.shift[layer])
        neighbours = torch.sparse.mm(means, scaled)
        return torch.relu(scaled @ self.own[layer].T + neighbours @ self.neighbours[layer].T + self.bias[layer])


class SAGE(nn.Module):
    """GraphSAGE network; the federation may exchange all of its parameters."""

    def __init__(
        self,
        features: sparse.csr_array,
        adjacency: sparse.csr_array,
        width: int,
        layers: int,
        outputs: int,
        dropout: float,
    ) -> None:
        super().__init__()
        dense = torch.from_numpy(features.toarray().astype(np.float32))
        self.data = GraphData(features=dense, means=mean_of_neighbours(adjacency))
        self.input = nn.Linear(features.shape[1], width)
        self.layers = NeighbourLayers(layers, width)
        self.dropout = SeededDropout(dropout)
        self.predictive = nn.Linear(width, outputs)

    def forward(self, rows: Tensor | None = None) -> Tensor:
        """Computes logits of these nodes, (B, o), or of all nodes without rows."""
        data = self.data.to_device(self.input.weight.device)
        values = torch.relu(self.input(self.dropout(data["features"])))
        for layer in range(len(self.layers.own)):
            values = values + self.dropout(self.layers.step(layer, values, data["means"]))
        normed = nn.functional.layer_norm(values, values.shape[1:])
        logits: Tensor = self.predictive(normed if rows is None else normed[rows])
        return logits


def mean_of_neighbours(adjacency: sparse.csr_array) -> Tensor:
    """Computes D^-1 A, sparse, (n, n); the rows of isolated nodes are zero."""
    degrees = np.asarray(adjacency.sum(axis=1), dtype=np.float64).ravel()
    scaled = sparse.csr_array(
        sparse.diags_array(np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)) @ adjacency
    )
    listed = sparse.coo_array(scaled)
    entries = torch.from_numpy(np.stack([listed.row, listed.col]).astype(np.int64))
    values = torch.from_numpy(listed.data.astype(np.float32))
    found: Tensor = torch.sparse_coo_tensor(entries, values, size=scaled.shape, check_invariants=True).coalesce()
    return found


def build_sage(shard: NodeShard, method: MethodSettings) -> SAGE:
    """Builds a SAGE network of the shard's graph."""
    return SAGE(
        shard.features, shard.adjacency, method.width, method.layers, count_outputs(method), method.nodes.dropout
    )
