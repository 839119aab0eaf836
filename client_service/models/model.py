"""A model: an encoder and a head. Training, serving and measures know no more of either than is said here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from client_service.models.encoder import Encoder
from client_service.models.heads import Head, Pooled
from client_service.models.initial_filter import Start
from client_service.models.ranker import Ranker, Rows, Side
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum

PARTS = {"encoder", "head", "response"}  # no part of a parameter's name, by which checkpoints and messages know it


@dataclass(frozen=True)
class Ingredients:
    """What a model is built from. interactions (M, N): the training graph; places (N,): each item's row in the
    federation's catalogue, None where there is none; start: the filter at which an encoder with one begins."""

    spectrum: Spectrum
    interactions: sparse.csr_array
    start: Start | None
    places: NDArray[np.int64] | None
    method: MethodSettings


class Model(nn.Module):
    """M users, N items, and a score f for each pair; higher is better."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.users, self.items = encoder.users, encoder.items

    @property
    def device(self) -> torch.device:
        """Where its parameters lie."""
        return self.encoder.embedding.device

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter, by its name within the encoder or the head."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield ".".join(word for word in name.split(".") if word not in PARTS), parameter

    def scores(self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool) -> tuple[Tensor, Tensor]:
        """f of each user with the item beside it, (B,), (B,) -> (B,), and with every negative, (n,) -> (B, n).

        leave_one_out: score the positives as if their own edges were not in the graph, where the encoder can tell.
        """
        left, right, others = self.encoder.batch(users, items, negatives, leave_one_out=leave_one_out)
        u, v = self.head.pool_users(left), self.head.pool_items(right)
        return self.head.score(u, v), self.head.score_all(u, self.head.pool_items(others))

    def pooled(self) -> tuple[Pooled, Pooled]:
        """All users and all items."""
        users, items = self.encoder.all_nodes()
        return self.head.pool_users(users), self.head.pool_items(items)

    @torch.no_grad()
    def freeze(self) -> Ranker:
        """The model as it is now, in arrays that nothing changes."""
        users, items = self.pooled()
        head = self.head
        return Ranker(head.user_side(users), head.item_side(items), head.predictor(), head.residual)

    @torch.no_grad()
    def fold_in(self, basket: Rows) -> Side:
        """The user side, one row, of somebody who is in no graph, by the rows of its items (b,)."""
        nodes = self.encoder.basket(torch.from_numpy(basket).to(self.device))
        return self.head.user_side(self.head.pool_users(nodes))


Builder = Callable[[Ingredients], Model]


def build_model(name: str, given: Ingredients) -> Model:
    """The model that encoders/<name>.py builds; `name` is one of EXCHANGES, as settings and strategies have it."""
    build: Builder = import_module(f"client_service.models.encoders.{name}").build
    return build(given)
