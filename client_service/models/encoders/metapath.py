"""FedHGNN's model: vectors along meta-paths of a perturbed graph, weighed by semantic attention.

Shapes: M users, N items, items after users; d width; P meta-paths.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn.functional import linear

from client_service.models.item_table import Factors, dot_product_model
from client_service.models.model import Model, ModelInputs
from client_service.models.whole_graph import Propagation
from shared.method.graph import degrees, interaction_matrix, normalise

BUDGET = 4.0  # epsilon of randomised response, for each possible pair


class SemanticAttention(nn.Module):
    """Attention over meta-paths: shares of P paths (P,) from the nodes' vectors (R, P, d).

    softmax_p mean_r q . tanh(W z_rp + b).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.query = nn.Parameter(torch.zeros(1, width))

    def forward(self, paths: Tensor) -> Tensor:
        logistic = torch.sigmoid(linear(paths, 2.0 * self.weight, 2.0 * self.bias))
        mean = 2.0 * logistic.mean(0) - 1.0  # tanh x = 2 sigmoid 2x - 1: on a CPU five times as fast as tanh
        return torch.softmax(mean @ self.query[0], dim=0)


class MetaPaths(Factors):
    """Encoder over meta-paths, each side with its own attention over three of them.

    Users along U, U-I and U-I-U, items along I, I-U and I-U-I. Shared beside the item table: `attention.*`, 2 (d^2 + 2
    d) numbers. Private: `embedding` (M, d), and the graph, which is perturbed. A training pair's own edge stays in it:
    leave_one_out changes nothing.
    """

    sees_new_edges = True

    def __init__(self, given: ModelInputs) -> None:
        super().__init__(given)
        noisy = perturb(given.interactions, BUDGET, np.random.default_rng(0))
        self.propagation = Propagation(normalise(noisy))
        self.attention = nn.ModuleDict({"user": SemanticAttention(self.width), "item": SemanticAttention(self.width)})

    def vectors(self) -> tuple[Tensor, Tensor]:
        users, items = self.paths()
        return self.mixed(users, users, "user"), self.mixed(items, items, "item")

    def rows(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        every_user, every_item = self.paths()
        return self.mixed(every_user, every_user[users], "user"), self.mixed(every_item, every_item[items], "item")

    def paths(self) -> tuple[Tensor, Tensor]:
        """Computes the vectors of all nodes along each path.

        Users: (M, P, d). Items: (N, P, d).
        """
        zero = torch.cat(super().vectors())
        one = self.propagation(zero)
        every = torch.stack([zero, one, self.propagation(one)], dim=1)
        users, items = torch.split(every, [self.users, self.items])
        return users, items

    def mixed(self, every: Tensor, chosen: Tensor, side: str) -> Tensor:
        """Averages the chosen nodes' vectors (B, P, d) by the paths' attention shares, (B, d).

        The shares are computed over `every` node.
        """
        shares: Tensor = self.attention[side](every)
        return (shares[:, None] * chosen).sum(1)


def perturb(interactions: sparse.csr_array, budget: float, generator: np.random.Generator) -> sparse.csr_array:
    """Perturbs interactions (M, N) by randomised response, thinned to each user's expected degree.

    A pair is kept as it is with p = e^b / (1 + e^b); of the ones that result a share d / (d p + (N - d)(1 - p)) is
    kept. The graph stays in the silo, and a fixed seed therefore discloses nothing.
    """
    # Paper: after an exponential mechanism over groups of similar items, within the chosen groups, with b = 1; here:
    # over all of the silo's items, because nothing groups them, so that at b = 1 nearly every edge would be invented.
    by_user, _ = degrees(interactions)
    honest = 1.0 / (1.0 + math.exp(-budget))
    false = (interactions.shape[1] - by_user) * (1.0 - honest)
    kept = by_user / np.maximum(by_user * honest + false, 1e-12)
    edges = interactions.tocoo()
    true = generator.random(len(edges.row)) < honest * kept[edges.row]
    invented = np.repeat(np.arange(len(by_user)), generator.poisson(false * kept))
    users = np.concatenate([edges.row[true], invented]).astype(np.int64)
    items = np.concatenate([edges.col[true], generator.integers(interactions.shape[1], size=len(invented))])
    return interaction_matrix(users, items.astype(np.int64), interactions.shape)


def build(given: ModelInputs) -> Model:
    """Builds the model with scores f_ui = <u, v_i>.

    The vectors are those that attention has averaged.
    """
    return dot_product_model(MetaPaths(given))
