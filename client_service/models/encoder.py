"""Encoder: part of a model that embeds users and items of a silo's graph.

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
    """Users or items as an encoder embeds them, R rows.

    layers: embeddings Z(0..L), each (R, q); an encoder without a graph has one. scale (R,): factor of each in a base
    path. bias (R,): what is added to every score of a user in training.
    """

    layers: list[Tensor]
    scale: Tensor
    bias: Tensor | None = None


class Encoder(nn.Module, ABC):
    """Encoder of M users and N items.

    `embedding` is the main trained parameter, `origin` its value before training.
    """

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
        """Returns the nodes of a batch, with gradients.

        users: (B,). items: the item of each user, (B,). negatives: (n,). leave_one_out: as if the pairs' own edges were
        not in the graph, where the encoder can leave them out.
        """

    @abstractmethod
    def all_nodes(self) -> tuple[Nodes, Nodes]:
        """Returns all M users and all N items, as they are ranked."""

    @abstractmethod
    def basket(self, items: Tensor) -> Nodes:
        """Returns the node of one user outside the graph.

        items: rows of the user's items, (b,).
        """

    @torch.no_grad()
    def pull_to_start(self, share: float) -> None:
        """Moves the embeddings by this share of the way back to `origin`."""
        self.embedding.lerp_(self.origin, share)

    @property
    def starts_at_filter(self) -> bool:
        """Whether the embeddings start at a filter, and not at random."""
        return False

    def align_with(self, trained: Tensor, rows: MatchedRows) -> None:
        """Aligns the start embeddings with trained ones (R, q) of some of these rows.

        Random start embeddings need no alignment.
        """
        del trained, rows

    @abstractmethod
    def embed_baskets(self, baskets: sparse.csr_array) -> Tensor:
        """Returns rows of `embedding` for users known by baskets alone.

        baskets: (B, N); rows: (B, q).
        """

    def prepare_inference(self) -> None:
        """Computes values that all baskets share.

        Called once on a copy that no longer changes.
        """

    def drop_training_state(self) -> None:
        """Frees memory that baskets do not need.

        Called once on a copy that answers baskets alone.
        """

    def begin_training(self, only: str) -> bool:
        """Prepares a training of the parameters whose name starts with `only`.

        It is called before each. Returns False if there is nothing to train.
        """
        del only
        return True

    def finish_training(self) -> None:
        """Updates ranking parameters that are not exchanged; called at the start and after each training."""
