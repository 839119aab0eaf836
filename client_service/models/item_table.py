"""User vectors and rows of a shared item table: what all encoders beneath a dot product have.

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
from client_service.models.model import DotProduct, Ingredients, Model, array_of
from client_service.models.ranker import Rows
from shared.errors import SettingsError
from shared.method.parameters import Float32

USER_DEVIATION = 0.1
RIDGE = 1e-2  # of the user vector that is solved for, times the mean squared length of the item vectors
UNSEEN = 0.1  # weight of all items together, as items not taken, against one item of the basket


class ItemTable(nn.Module):
    """One row for each item of the catalogue, (C, d); `places` (N,) are the rows of the silo's own items.

    text (N, d): what is added to the rows of the silo's items. With it the table begins at zero: it holds what training
    adds to the items' text, so that the text itself never leaves, and an average of tables is one of items' vectors.
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
        self.table.register_hook(self.own_rows)  # type: ignore[no-untyped-call]

    def own_rows(self, values: Tensor) -> Tensor:
        """(C, d) with zeros where the silo has no item: as a hook on gradients it keeps penalties off those rows."""
        return values * self.present

    def forward(self, items: Tensor) -> Tensor:
        """Rows of the silo's items (B,), (B, d)."""
        rows: Tensor = self.table[self.places[items]]
        return rows if self.text is None else rows + self.text[items]


class Factors(Encoder):
    """A vector for each user and each item. Private: `embedding`, those of users. Shared: `item.table`.

    There is no graph in the score, so that leave_one_out changes nothing. SettingsError without a catalogue.
    """

    row_kinds = MappingProxyType({"embedding": "users"})
    sees_new_edges = False
    origin: Tensor

    def __init__(self, given: Ingredients) -> None:
        super().__init__()
        method = given.method
        if given.places is None or method.catalogue == 0:
            raise SettingsError("catalogue: expected a catalogue of items that all clients share, got none")
        self.users, self.items = given.interactions.shape
        self.width = method.width
        self.item = ItemTable(given.places, (method.catalogue, method.width), given.text)
        self.embedding = nn.Parameter(normal((self.users, self.width), USER_DEVIATION, stream=1))
        self.register_buffer("origin", self.embedding.detach().clone(), persistent=False)

    def user_rows(self, users: Tensor) -> Tensor:
        """Vectors of these users, (B,) -> (B, d)."""
        return self.embedding[users]

    def item_rows(self, items: Tensor) -> Tensor:
        """Vectors of these items of the silo, (B,) -> (B, d)."""
        rows: Tensor = self.item(items)
        return rows

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Those of all users (M, d) and of all items (N, d): everything that ranking needs."""
        return self.embedding, self.item_rows(torch.arange(self.items, device=self.embedding.device))

    def rows(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of the users and of the items of a batch, with one look-up a side."""
        return self.user_rows(users), self.item_rows(items)

    def batch(
        self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool
    ) -> tuple[Nodes, Nodes, Nodes]:
        del leave_one_out
        u, v = self.rows(users, torch.cat([items, negatives]))
        return self.user_nodes(u, users), nodes_of(v[: len(items)]), nodes_of(v[len(items) :])

    def user_nodes(self, rows: Tensor, users: Tensor) -> Nodes:
        """Vectors of these users (B, d), with what training adds to their scores."""
        del users
        return nodes_of(rows)

    def all_nodes(self) -> tuple[Nodes, Nodes]:
        users, items = self.vectors()
        return nodes_of(users), nodes_of(items)

    def folded_items(self) -> Tensor:
        """Computes the vectors of all items (N, d) by which a basket becomes a user's vector."""
        return self.vectors()[1]

    def basket(self, items: Tensor) -> Nodes:
        vector = FoldedVectors(array_of(self.folded_items())).of(items.cpu().numpy())
        return self.basket_nodes(torch.from_numpy(vector)[None].to(self.embedding))

    def basket_nodes(self, vectors: Tensor) -> Nodes:
        """Users with these vectors (B, d), of whom nothing but a basket is known."""
        return nodes_of(vectors)

    def embed_baskets(self, baskets: sparse.csr_array) -> Tensor:
        folded = FoldedVectors(array_of(self.folded_items()))
        rows = [folded.of(items) for items in np.split(baskets.indices.astype(np.int64), baskets.indptr[1:-1])]
        return torch.from_numpy(np.stack(rows)).to(self.embedding)


def nodes_of(rows: Tensor) -> Nodes:
    """Users or items with these vectors."""
    return Nodes([rows], rows.new_ones(()))


class FoldedVectors:
    """Vectors of people who have baskets among items (N, d): least squares for 1 on the basket and, with the small
    weight UNSEEN / N each, 0 on everything, as in implicit-feedback matrix factorisation."""

    def __init__(self, items: Float32) -> None:
        self._values = values = items.astype(np.float64)
        ridge = RIDGE * float((values**2).sum(1).mean()) + np.finfo(np.float64).tiny
        self.unseen = UNSEEN / len(values) * (values.T @ values) + ridge * np.eye(values.shape[1])

    def of(self, basket: Rows) -> Float32:
        """x (d,) of a basket (b,)."""
        own = self._values[basket]
        vector: Float32 = np.linalg.solve(own.T @ own + self.unseen, own.sum(0)).astype(np.float32)
        return vector


def by_dot_product(encoder: Factors) -> Model:
    """f_ui = <u, v_i>, and nothing else in the head."""
    return Model(encoder, DotProduct())


def normal(shape: tuple[int, int], deviation: float, stream: int) -> Tensor:
    """A seeded normal matrix, the same on every machine and device. No two tables of a model may share a stream, nor
    have that of the item table, which the run's seed alone draws: their rows would begin as the same numbers."""
    noise = np.random.default_rng([stream, shape[1]]).normal(0.0, deviation, shape)
    return torch.tensor(noise, dtype=torch.get_default_dtype())
