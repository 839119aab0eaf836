"""NGCF: convolutions with weights and an activation on the whole graph.

Pooling and predictive MLPs are those of LPSFed. Wang, He, Wang, Feng, Chua: Neural Graph Collaborative Filtering. SIGIR
2019; the encoder of the paper's ablation "w/o LGCN". Shapes: d width, L layers, R rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from client_service.models.model import Model, ModelInputs
from client_service.models.whole_graph import WholeGraph, model_with_mlps

SLOPE = 0.2  # of the LeakyReLU below zero, as in the original


class NGCF(WholeGraph):
    """Encoder of NGCF; Z(0) and every W1, W2 are private."""

    def __init__(self, given: ModelInputs) -> None:
        super().__init__(given)
        layers, width = given.method.layers, given.method.width
        self.on_sum = nn.Parameter(_weights(layers, width, seed=1))  # W1, (L, d, d)
        self.on_product = nn.Parameter(_weights(layers, width, seed=2))  # W2, (L, d, d)

    def convolve(self, number: int, rows: Tensor, neighbours: Tensor) -> Tensor:
        """Computes one NGCF layer of R nodes.

        LeakyReLU((A_hat + I) Z W1 + (A_hat Z) * Z W2).
        """
        on_sum, on_product = self.on_sum[number], self.on_product[number]
        return leaky_relu((neighbours + rows) @ on_sum + (neighbours * rows) @ on_product, SLOPE)


def build(given: ModelInputs) -> Model:
    """Builds NGCF beneath both MLPs, which alone can be shared."""
    return model_with_mlps(NGCF(given), given)


def _weights(layers: int, width: int, seed: int) -> Tensor:
    """Draws Xavier-uniform weights of all layers, (L, d, d), the same on every machine."""
    limit = np.sqrt(3.0 / width)
    values = np.random.default_rng(seed).uniform(-limit, limit, (layers, width, width))
    return torch.tensor(values, dtype=torch.get_default_dtype())
