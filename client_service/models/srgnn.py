"""SR-GNN: the graph of a session -> a vector of what this visit is about -> a score of each item.

Wu, Tang, Zhu, Wang, Xie, Tan: Session-based Recommendation with Graph Neural Networks. AAAI 2019. arXiv 1811.00855.
Shapes: B sessions of up to L clicks over n nodes, width d, N items.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_service.models.session_graph import SessionGraphs, session_graphs


class SRGNN(nn.Module):
    """One step of a gated graph network, attention of the last click over all, and a linear read-out.

    Numbers beside the item table: 15 d^2 + 14 d.
    """

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.item = VisitedItems(items, width)
        self.edges = Edges(width)
        self.cell = nn.GRUCell(2 * width, width)
        self.attention = Attention(width)
        self.transform = nn.Linear(2 * width, width)

    def forward(self, clicks: Tensor, lengths: Tensor) -> Tensor:
        """Scores of all items as the next click, (B, N)."""
        scores: Tensor = self.score(*self.encode(clicks, lengths), self.item.table)
        return scores

    def encode(self, clicks: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The session vectors s, (B, d), the vectors of the clicks, (B, L, d), and where there are clicks, (B, L)."""
        graphs = session_graphs(clicks, lengths)
        nodes = self.propagate(self.item.table[graphs.nodes], graphs)
        hidden = nodes.gather(1, graphs.places[:, :, None].expand(-1, -1, nodes.shape[2]))
        last = hidden[torch.arange(len(lengths), device=lengths.device), lengths - 1]
        pooled = self.attention(hidden, last, graphs.inside)
        return self.transform(torch.cat([pooled, last], dim=1)), hidden, graphs.inside

    def propagate(self, nodes: Tensor, graphs: SessionGraphs) -> Tensor:
        """What each node, (B, n, d), becomes by its neighbours before and after it."""
        messages = self.edges(nodes, graphs)
        moved: Tensor = self.cell(messages.flatten(0, 1), nodes.flatten(0, 1))
        return moved.reshape(nodes.shape)

    def score(self, sessions: Tensor, hidden: Tensor, inside: Tensor, candidates: Tensor) -> Tensor:
        """Inner products with the rows of some items, (B, C). The clicks do not count."""
        del hidden, inside
        return sessions @ candidates.T


class VisitedItems(nn.Module):
    """A row for each item, (N, d)."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(items, width))


class Edges(nn.Module):
    """Messages along edges: A_in (x H_in + c_in) + b_in beside A_out (x H_out + c_out) + b_out, (B, n, 2 d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.incoming, self.outgoing = nn.Linear(width, width), nn.Linear(width, width)
        self.incoming_bias = nn.Parameter(torch.empty(width))
        self.outgoing_bias = nn.Parameter(torch.empty(width))

    def forward(self, nodes: Tensor, graphs: SessionGraphs) -> Tensor:
        before = graphs.incoming.to(nodes.dtype) @ self.incoming(nodes) + self.incoming_bias
        after = graphs.outgoing.to(nodes.dtype) @ self.outgoing(nodes) + self.outgoing_bias
        return torch.cat([before, after], dim=2)


class Attention(nn.Module):
    """sum_i alpha_i h_i, alpha_i = q^T sigmoid(W1 h_last + W2 h_i), both with a bias; not normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last, self.each = nn.Linear(width, width), nn.Linear(width, width)
        self.query = nn.Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, last: Tensor, inside: Tensor) -> Tensor:
        weights = self.query(torch.sigmoid(self.last(last)[:, None] + self.each(hidden)))
        pooled: Tensor = (weights * hidden * inside[:, :, None]).sum(1)
        return pooled
