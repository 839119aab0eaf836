"""FedPerGNN's model: each node's vector and the attention-weighted mean of its neighbours' vectors.

Shapes: M users, N items, items after users; d width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_service.models.item_table import Factors, dot_product_model
from client_service.models.model import Model, ModelInputs
from client_service.models.whole_graph import Propagation

LARGEST_EXPONENT = 20.0  # of an attention weight: e^20 neighbours fit into a float32


class GraphAttention(Factors):
    """Encoder of one graph attention layer on users and items.

    h_n = e_n + sum_m a_m e_m / sum_m a_m over n's neighbours m, a_m = exp(w . e_m). Private: `embedding` (M, d) and the
    attention vectors `attention` (2, d) of users and of items as neighbours. A training pair's own edge stays in the
    graph: leave_one_out changes nothing.
    """

    sees_new_edges = True

    # Paper: graph attention with exp(LeakyReLU(w . e_m + w' . e_n)); here: without the LeakyReLU, because then the
    # node's own part cancels, the order of its neighbours stays, and the layer is one product with a constant matrix.

    def __init__(self, given: ModelInputs) -> None:
        super().__init__(given)
        self.neighbours = Propagation(given.interactions)
        self.attention = nn.Parameter(torch.zeros(2, self.width))

    def vectors(self) -> tuple[Tensor, Tensor]:
        found = _attend(*self.summed())
        return found[: self.users], found[self.users :]

    def rows(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        nodes = torch.cat([users, items + self.users])
        found = _attend(*(every[nodes] for every in self.summed()))
        return found[: len(users)], found[len(users) :]

    def summed(self) -> tuple[Tensor, Tensor]:
        """Returns the own vectors of all nodes, and the sums over their neighbours.

        (M + N, d) and (M + N, d + 1). The sums are sum_m a_m e_m, and sum_m a_m in the last column.
        """
        users, items = super().vectors()
        rows = torch.cat([users, items])
        weights = torch.cat([users @ self.attention[0], items @ self.attention[1]]).clamp(max=LARGEST_EXPONENT)
        mass = torch.exp(weights)[:, None]
        return rows, self.neighbours(torch.cat([mass * rows, mass], dim=1))


def _attend(rows: Tensor, sums: Tensor) -> Tensor:
    """Computes vectors h of nodes from the parts of `GraphAttention.summed`.

    rows and h: (R, d). sums: (R, d + 1).
    """
    return rows + sums[:, :-1] / sums[:, -1:].clamp(min=torch.finfo(sums.dtype).tiny)


def build(given: ModelInputs) -> Model:
    """Builds the model with scores f_ui = <h_u, h_i>."""
    return dot_product_model(GraphAttention(given))
