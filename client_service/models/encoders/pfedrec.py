"""PFedRec's model: a linear score function for each user on item vectors, without user vectors."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from client_service.models.encoder import Nodes
from client_service.models.item_table import Factors, dot_product_model
from client_service.models.model import Model, ModelInputs


class PFedRec(Factors):
    """Encoder with a linear score function for each user.

    f_ui = <w_u, v_i> + b_u. Private: the score functions, `embedding` w (M, d) and `embedding_bias` b (M,); and `tuned`
    (N, d), the item rows as training left them, by which items are ranked after the mean has replaced the shared table.
    Scores that are served leave b_u out: it moves all of a user's items alike.
    """

    row_kinds = MappingProxyType({"embedding": "users", "embedding_bias": "users", "tuned": "items"})

    def __init__(self, given: ModelInputs) -> None:
        super().__init__(given)
        self.embedding_bias = nn.Parameter(torch.zeros(self.users))
        self.tuned = nn.Parameter(torch.zeros(self.items, self.width), requires_grad=False)
        self.finish_training()

    def vectors(self) -> tuple[Tensor, Tensor]:
        return self.embedding, self.tuned

    def user_nodes(self, rows: Tensor, users: Tensor) -> Nodes:
        return replace(super().user_nodes(rows, users), bias=self.embedding_bias[users])

    @torch.no_grad()
    def finish_training(self) -> None:
        """Stores the item rows as they are now."""
        self.tuned.copy_(self.item_rows(torch.arange(self.items, device=self.tuned.device)))


def build(given: ModelInputs) -> Model:
    """Builds the model with scores f_ui = <w_u, v_i> + b_u."""
    return dot_product_model(PFedRec(given))
