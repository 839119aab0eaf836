"""User vectors and a shared item table: base of encoders with a dot product.

Shapes: M users, N items of the silo, C items of the federation's catalogue, d width, B rows, n negatives.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from client_service.models.encoder import Encoder, Nodes
from client_service.models.model import DotProduct, Model, ModelInputs, to_array
from client_service.models.ranker import Rows
from shared.errors import SettingsError
from shared.method.parameters import Float32

USER_DEVIATION = 0.1
RIDGE = 1e-2  # of the user vector that is solved for, times the mean squared length of the item vectors
UNSEEN = 0.1  # weight of all items together, as items not taken, against one item of the basket


class ItemTable(nn.Module):
    """Item table with one row for each item of the catalogue, (C, d).

    places (N,): rows of the silo's own items. text (N, d): added to the rows of the silo's items. With it the table
    begins at zero: it holds what training adds to the items' text, so that the text itself never leaves, and an average
    of tables is one of items' vectors.
    """

    places: Tensor
    present: Tensor
    text: Tensor | None

    def __init__(self, places: NDArray[np.int64], shape: tuple[int, int], text: Float32 | None = None) -> None:
        super().__init__()
        self.register_buffer("text", None if text is None else torch.from_numpy(text), persistent=False)
        self.table = nn.Parameter(torch.zeros(shape))  # a run begins with rows that its seed draws
        self.register_buffer("places", torch.from_numpy(places), persistent=False)
        self.register_buffer("present", torch.zeros(shape[0], 1).index_fill_(0, self.places, 1.0), persistent=False)
        self.table.register_hook(self.zero_absent_rows)  # type: ignore[no-untyped-call]

    def zero_absent_rows(self, values: Tensor) -> Tensor:
        """Sets rows (C, d) of items that the silo lacks to zero.

        As a hook on gradients it keeps penalties off those rows.
        """
        return values * self.present

    def forward(self, items: Tensor) -> Tensor:
        """Returns the rows of items of the silo, (B,) to (B, d)."""
        rows: Tensor = self.table[self.places[items]]
        return rows if self.text is None else rows + self.text[items]


class Factors(Encoder):
    """Encoder with a vector for each user and each item.

    Private: `embedding`, the vectors of users. Shared: `item.table`. There is no graph in the score, so that
    leave_one_out changes nothing. SettingsError without a catalogue.
    """

    row_kinds = MappingProxyType({"embedding": "users"})
    sees_new_edges = False
    origin: Tensor

    def __init__(self, given: ModelInputs) -> None:
        super().__init__()
        method = given.method
        if given.places is None or method.catalogue == 0:
            raise SettingsError("catalogue: expected a catalogue of items that all clients share, got none")
        self.users, self.items = given.interactions.shape
        self.width = method.width
        self.item = ItemTable(given.places, (method.catalogue, method.width), given.text)
        self.embedding = nn.Parameter(draw_normal((self.users, self.width), USER_DEVIATION, stream=1))
        self.register_buffer("origin", self.embedding.detach().clone(), persistent=False)

    def user_rows(self, users: Tensor) -> Tensor:
        """Returns the vectors of these users, (B,) to (B, d)."""
        return self.embedding[users]

    def item_rows(self, items: Tensor) -> Tensor:
        """Returns the vectors of these items of the silo, (B,) to (B, d)."""
        rows: Tensor = self.item(items)
        return rows

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Returns the vectors of all users (M, d) and of all items (N, d)."""
        return self.embedding, self.item_rows(torch.arange(self.items, device=self.embedding.device))

    def rows(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the vectors of a batch's users and items.

        Each side takes one look-up.
        """
        return self.user_rows(users), self.item_rows(items)

    def batch(
        self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool
    ) -> tuple[Nodes, Nodes, Nodes]:
        del leave_one_out
        u, v = self.rows(users, torch.cat([items, negatives]))
        return self.user_nodes(u, users), to_nodes(v[: len(items)]), to_nodes(v[len(items) :])

    def user_nodes(self, rows: Tensor, users: Tensor) -> Nodes:
        """Wraps users' vectors (B, d) as nodes, with the bias added in training."""
        del users
        return to_nodes(rows)

    def all_nodes(self) -> tuple[Nodes, Nodes]:
        users, items = self.vectors()
        return to_nodes(users), to_nodes(items)

    def folded_items(self) -> Tensor:
        """Computes the item vectors that turn a basket into a user vector, (N, d)."""
        return self.vectors()[1]

    def basket(self, items: Tensor) -> Nodes:
        vector = FoldedVectors(to_array(self.folded_items())).solve(items.cpu().numpy())
        return self.basket_nodes(torch.from_numpy(vector)[None].to(self.embedding))

    def basket_nodes(self, vectors: Tensor) -> Nodes:
        """Returns user nodes with these vectors (B, d), which come from baskets alone."""
        return to_nodes(vectors)

    def embed_baskets(self, baskets: sparse.csr_array) -> Tensor:
        folded = FoldedVectors(to_array(self.folded_items()))
        rows = [folded.solve(items) for items in np.split(baskets.indices.astype(np.int64), baskets.indptr[1:-1])]
        return torch.from_numpy(np.stack(rows)).to(self.embedding)


def to_nodes(rows: Tensor) -> Nodes:
    """Wraps vectors of users or items as nodes."""
    return Nodes([rows], rows.new_ones(()))


class FoldedVectors:
    """Fold-in of baskets among items (N, d) by least squares.

    The target is 1 on the basket and, with the small weight UNSEEN / N each, 0 on every item, as in implicit-feedback
    matrix factorisation.
    """

    def __init__(self, items: Float32) -> None:
        self._values = values = items.astype(np.float64)
        ridge = RIDGE * float((values**2).sum(1).mean()) + np.finfo(np.float64).tiny
        self.unseen = UNSEEN / len(values) * (values.T @ values) + ridge * np.eye(values.shape[1])

    def solve(self, basket: Rows) -> Float32:
        """Computes the user vector (d,) of a basket (b,)."""
        own = self._values[basket]
        vector: Float32 = np.linalg.solve(own.T @ own + self.unseen, own.sum(0)).astype(np.float32)
        return vector


def dot_product_model(encoder: Factors) -> Model:
    """Builds a model with scores f_ui = <u, v_i>, and no parameter in the head."""
    return Model(encoder, DotProduct())


def draw_normal(shape: tuple[int, int], deviation: float, stream: int) -> Tensor:
    """Draws a seeded normal matrix, the same on every machine and device.

    No two tables of a model may share a stream, nor have that of the item table, which the run's seed alone draws:
    their rows would begin as the same numbers.
    """
    noise = np.random.default_rng([stream, shape[1]]).normal(0.0, deviation, shape)
    return torch.tensor(noise, dtype=torch.get_default_dtype())
