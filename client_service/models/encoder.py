"""What an encoder is: the part of a model that gives each user and each item of a silo's graph its embeddings.

Shapes: M users, N items, q embedding width, B rows, n negatives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy import sparse
from torch import Tensor, nn

from client_service.models.parameter_transfer import MatchedRows, RowKind


@dataclass(frozen=True)
class Nodes:
    """R users or R items as an encoder gives them.

    layers: embeddings Z(0..L), each (R, q); an encoder without a graph has one. scale (R,): factor of each in a base
    path. bias (R,): what is added to every score of a user in training.
    """

    layers: list[Tensor]
    scale: Tensor
    bias: Tensor | None = None


class Encoder(nn.Module, ABC):
    """M users and N items. `embedding` is what it trains first of all, `origin` where that began."""

    users: int
    items: int
    embedding: nn.Parameter
    origin: Tensor
    row_kinds: ClassVar[Mapping[str, RowKind]]  # the parameters with a row for each user, item or node
    sees_new_edges: ClassVar[bool] = True  # does a user's embedding follow interactions that nothing was trained on?

    @abstractmethod
    def batch(
        self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool
    ) -> tuple[Nodes, Nodes, Nodes]:
        """Users (B,), the item beside each (B,), and negatives (n,), with gradients.

        leave_one_out: the pairs as if their own edges were not in the graph, where the encoder can tell.
        """

    @abstractmethod
    def all_nodes(self) -> tuple[Nodes, Nodes]:
        """All M users and all N items, as they rank."""

    @abstractmethod
    def basket(self, items: Tensor) -> Nodes:
        """One user who is in no graph, by the rows of its items (b,)."""

    @torch.no_grad()
    def pull_to_start(self, share: float) -> None:
        """Move the embeddings by this share of the way back to where they began."""
        self.embedding.lerp_(self.origin, share)

    @property
    def begins_at_filter(self) -> bool:
        """Do the embeddings begin where they rank well, or at random?"""
        return False

    def begin_beside(self, trained: Tensor, rows: MatchedRows) -> None:
        """Begin with embeddings that go with trained ones (R, q) of some of these rows. Those at random always do."""
        del trained, rows

    @abstractmethod
    def embed_baskets(self, baskets: sparse.csr_array) -> Tensor:
        """Rows of `embedding`, (B, q), for users with these items (B, N) of whom nothing else is known."""

    def prepare_inference(self) -> None:
        """Called once on a copy that nothing changes any more: what each basket needs can be computed now."""

    def drop_training_state(self) -> None:
        """Called once on a copy that is asked for baskets and for nothing else: what these do not need can go."""

    def begin_training(self, only: str) -> bool:
        """Prepares a training of the parameters whose name starts with `only`.

        It is called before each. Returns False where there is nothing to train.
        """
        del only
        return True

    def finish_training(self) -> None:
        """Called after the first parameters and each training, for one that ranks by other than it exchanges."""
