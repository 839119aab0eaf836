"""NGCF: convolutions with weights and an activation on the whole graph, beneath LPSFed's pooling and predictive MLPs.

Wang, He, Wang, Feng, Chua: Neural Graph Collaborative Filtering. SIGIR 2019; the encoder of the paper's ablation
"w/o LGCN". Shapes: M users, N items, d width, L layers, B rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from client_service.models.lgcn import LGCN, RANDOM_DEVIATION, TwoLayers
from client_service.models.model import Ingredients, Model
from client_service.models.propagation import Propagation
from shared.errors import SettingsError
from shared.method.graph import degrees, normalised, power

SLOPE = 0.2  # of the LeakyReLU below zero, as in the original


class NGCF(LGCN):
    """Private: Z(0) and every W1, W2. Shared: `pooling.*` and `predictive.*`, as with LGCN; `residual` is False.

    What LGCN calls coefficients are here the layers Z(0..L) of all nodes (M + N, d) themselves. A training pair's own
    edge stays in the graph: leave_one_out changes nothing. It starts at random, whatever `start` says.
    """

    item_power: Tensor

    def __init__(self, given: Ingredients) -> None:
        Model.__init__(self)
        method = given.method
        if method.signal == "trained":
            raise SettingsError("signal: expected 'eigenvalues' with the model 'ngcf', which has no kernels")
        self.users, self.items = given.interactions.shape
        self.width, self.residual, self.exponent = method.width, False, 0.0
        noise = np.random.default_rng(0).normal(0.0, RANDOM_DEVIATION, (self.users + self.items, self.width))
        self._register_start(noise, np.ones(self.users), np.ones(self.items), alpha=1.0)
        self.propagation = Propagation(normalised(given.interactions))
        item_power = torch.tensor(power(degrees(given.interactions)[1], -0.5), dtype=self.origin.dtype)
        self.register_buffer("item_power", item_power, persistent=False)
        self.embedding = nn.Parameter(self.origin.clone())
        self.on_sum = nn.Parameter(_weights(method.layers, self.width, seed=1))  # W1, (L, d, d)
        self.on_product = nn.Parameter(_weights(method.layers, self.width, seed=2))  # W2, (L, d, d)
        self.pooling = TwoLayers((method.layers + 1) * self.width, self.width, self.width)
        self.predictive = TwoLayers(3 * self.width, self.width, 1)

    @property
    def alpha(self) -> Tensor:
        """1: there is no base path to weigh."""
        return self.alpha_start

    def coefficients(self, first: Tensor | None = None) -> list[Tensor]:
        """Z(0..L) of all nodes: Z(l) = LeakyReLU((A_hat + I) Z(l-1) W1 + (A_hat Z(l-1)) * Z(l-1) W2)."""
        del first
        found: list[Tensor] = [self.embedding]
        for on_sum, on_product in zip(self.on_sum, self.on_product, strict=True):
            found.append(_convolved(found[-1], self.propagation(found[-1]), on_sum, on_product))
        return found

    def layers(self, nodes: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> list[Tensor]:
        """Rows of Z(0..L) of the given nodes, each (B, d)."""
        del rows
        return [layer[nodes] for layer in coefficients]

    def fold_in(self, baskets: Tensor, coefficients: list[Tensor]) -> list[Tensor]:
        """Z(0..L) of 0/1 baskets (B, N): Z(0) is the mean of their items' rows, and on it come the layers as they
        would be, had the items' own rows not changed by it."""
        degree = baskets.sum(1, keepdim=True).clamp(min=1)
        found = [baskets @ coefficients[0][self.users :] / degree]
        reach = baskets * self.item_power / degree.sqrt()  # A_hat's row of the basket
        for layer, on_sum, on_product in zip(coefficients[:-1], self.on_sum, self.on_product, strict=True):
            found.append(_convolved(found[-1], reach @ layer[self.users :], on_sum, on_product))
        return found

    def scores(self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool) -> tuple[Tensor, Tensor]:
        del leave_one_out
        layers = self.coefficients()
        u, v = self.pooled_users(users, layers), self.pooled_items(items, layers)
        return self.score(u, v), self.score_all(u, self.pooled_items(negatives, layers))


def _convolved(z: Tensor, near: Tensor, on_sum: Tensor, on_product: Tensor) -> Tensor:
    """LeakyReLU((near + z) W1 + (near * z) W2), near = A_hat z: (R, d), (R, d) -> (R, d)."""
    return leaky_relu((near + z) @ on_sum + (near * z) @ on_product, SLOPE)


def _weights(layers: int, width: int, seed: int) -> Tensor:
    """Xavier-uniform weights of all layers, (L, d, d), the same on every machine."""
    limit = np.sqrt(3.0 / width)
    drawn = np.random.default_rng(seed).uniform(-limit, limit, (layers, width, width))
    return torch.tensor(drawn, dtype=torch.get_default_dtype())
