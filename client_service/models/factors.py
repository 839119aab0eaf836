"""User vectors and rows of a shared item table -> f, their dot product: what all models with an item table have.

Shapes: M users, N items of the silo, C items of the federation's catalogue, d width, B rows, n negatives.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_service.models.model import Ingredients, Model
from shared.errors import SettingsError

USER_DEVIATION = 0.1


class ItemTable(nn.Module):
    """One row for each item of the catalogue, (C, d); `places` (N,) are the rows of the silo's own items."""

    places: Tensor
    present: Tensor

    def __init__(self, places: NDArray[np.int64], shape: tuple[int, int]) -> None:
        super().__init__()
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
        return rows


class Factors(Model):
    """f_ui = <u, v_i>. Private: `embedding`, a vector for each user. Only `item.*` can be shared.

    There is no graph in the score, so that leave_one_out changes nothing. SettingsError without a catalogue.
    """

    exchangeable: tuple[str, ...] = ("item.",)
    origin: Tensor

    def __init__(self, given: Ingredients) -> None:
        super().__init__()
        method = given.method
        if given.places is None or method.catalogue == 0:
            raise SettingsError("catalogue: expected a catalogue of items that all clients share, got none")
        self.users, self.items = given.interactions.shape
        self.width = method.width
        self.item = ItemTable(given.places, (method.catalogue, method.width))
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

    def scores(self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool) -> tuple[Tensor, Tensor]:
        del leave_one_out
        u, v = self.rows(users, torch.cat([items, negatives]))
        return (u * v[: len(items)]).sum(1), u @ v[len(items) :].T

    @torch.no_grad()
    def pull_to_start(self, share: float) -> None:
        self.embedding.lerp_(self.origin, share)


def normal(shape: tuple[int, int], deviation: float, stream: int) -> Tensor:
    """A seeded normal matrix, the same on every machine and device. No two tables of a model may share a stream, nor
    have that of the item table, which the run's seed alone draws: their rows would begin as the same numbers."""
    noise = np.random.default_rng([stream, shape[1]]).normal(0.0, deviation, shape)
    return torch.tensor(noise, dtype=torch.get_default_dtype())
