"""TAGNN: SR-GNN whose session vector depends on the item that is scored.

Yu, Zhu, Liu, Wu, Wang, Tan: TAGNN: Target Attentive Graph Neural Networks for Session-based Recommendation. SIGIR 2020.
arXiv 2005.02844.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from client_service.models.sequence.srgnn import SRGNN

PIECE, LEAST_ITEMS = 1 << 20, 256
"""Numbers (B, L, c) of the attention of c items over clicks that are in memory at once; and c at least."""


class TAGNN(SRGNN):
    """SR-GNN with attention of each candidate item over the clicks; d^2 numbers more.

    target_t = sum_i beta_ti h_i, beta_t = softmax_i(e_t^T W h_i); z_t = e_t (s + target_t).
    """

    # Paper: W3 takes the last click, the global and the target vector together; here: the target vector is added to
    # the session vector, as in the released code: (B, N, d) is then never needed, because e_t target_t is
    # sum_i beta_ti (e_t h_i). The released code's softmax runs over padding too; here over clicks alone.
    def __init__(self, items: int, width: int) -> None:
        super().__init__(items, width)
        self.target = nn.Linear(width, width, bias=False)

    def score(self, sessions: Tensor, hidden: Tensor, inside: Tensor, candidates: Tensor) -> Tensor:
        """Scores candidate items, (B, C), in blocks of items.

        While training, each block is computed again for its gradient, which saves memory.
        """
        seen, size = self.target(hidden), max(LEAST_ITEMS, PIECE // inside.numel())
        pieces = [
            checkpoint(self._score_piece, sessions, hidden, seen, inside, piece, use_reentrant=False)
            for piece in torch.split(candidates, size)
        ]
        return torch.cat(pieces, dim=1)

    @staticmethod
    def _score_piece(sessions: Tensor, hidden: Tensor, seen: Tensor, inside: Tensor, piece: Tensor) -> Tensor:
        near = (seen @ piece.T).masked_fill(~inside[:, :, None], -torch.inf)  # (B, L, c)
        targets: Tensor = (torch.softmax(near, dim=1) * (hidden @ piece.T)).sum(1)
        return sessions @ piece.T + targets
