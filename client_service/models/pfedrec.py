"""PFedRec's model: a linear score function for each user on item vectors, and no user vector besides."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_service.models.factors import Factors
from client_service.models.model import Ingredients


class PFedRec(Factors):
    """f_ui = <w_u, v_i> + b_u. Private: the score functions, `embedding` w (M, d) and `embedding_bias` b (M,); and
    `tuned` (N, d), the item rows as training left them, which rank after the mean has replaced the shared table.

    Scores that are served leave b_u out: it moves all of a user's items alike.
    """

    def __init__(self, given: Ingredients) -> None:
        super().__init__(given)
        self.embedding_bias = nn.Parameter(torch.zeros(self.users))
        self.tuned = nn.Parameter(torch.zeros(self.items, self.width), requires_grad=False)
        self.trained()

    def vectors(self) -> tuple[Tensor, Tensor]:
        return self.embedding, self.tuned

    def scores(self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool) -> tuple[Tensor, Tensor]:
        positive, others = super().scores(users, items, negatives, leave_one_out=leave_one_out)
        bias = self.embedding_bias[users]
        return positive + bias, others + bias[:, None]

    @torch.no_grad()
    def trained(self) -> None:
        """Keep the item rows as they are now."""
        self.tuned.copy_(self.item_rows(torch.arange(self.items, device=self.tuned.device)))
