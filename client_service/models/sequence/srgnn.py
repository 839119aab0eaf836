"""SR-GNN: scores each item as the next click from the graph of a session.

Session-based Recommendation with Graph Neural Networks. Wu et al. AAAI 2019.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class SessionGraphs(NamedTuple):
    """Graphs of B sessions of up to L clicks over up to n distinct items.

    nodes: items, (B, n), 0 if there is none. places: the node of each click, (B, L). inside: is there a click, (B,
    L). incoming, outgoing: (B, n, n); row v of incoming has 1 / indegree(v) at each node before v, row u of outgoing 1
    / outdegree(u) at each node after u; rows without an edge are 0. An edge that repeats counts once.
    """

    nodes: Tensor
    places: Tensor
    inside: Tensor
    incoming: Tensor
    outgoing: Tensor


def session_graphs(clicks: Tensor, lengths: Tensor) -> SessionGraphs:
    """Builds the graphs of sessions.

    clicks: (B, L), any number after the end of a sequence. lengths: (B,), 1 or more.
    """
    inside = torch.arange(clicks.shape[1], device=clicks.device) < lengths[:, None]
    nodes, places = _distinct(clicks, inside)
    edges = _edges(places, inside, nodes.shape[1])
    incoming = edges.transpose(1, 2) / edges.sum(1).clamp(min=1.0)[:, :, None]
    outgoing = edges / edges.sum(2).clamp(min=1.0)[:, :, None]
    return SessionGraphs(nodes, places, inside, incoming, outgoing)


def _distinct(clicks: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each row's distinct items and the place of each click among them.

    Items are ascending, (B, n); places: (B, L).
    """
    beyond = torch.iinfo(clicks.dtype).max
    ordered, order = clicks.masked_fill(~inside, beyond).sort(dim=1, stable=True)
    first = torch.ones_like(inside)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    rank = first.cumsum(1) - 1
    places = torch.empty_like(rank).scatter_(1, order, rank)
    real = ordered != beyond
    count = int((rank.masked_fill(~real, 0).amax()) + 1)
    nodes = torch.zeros(len(clicks), clicks.shape[1], dtype=clicks.dtype, device=clicks.device)
    nodes.scatter_(1, rank, ordered.masked_fill(~real, 0))  # padding has a place of its own, and is 0
    return nodes[:, :count], places.masked_fill(~inside, 0)


def _edges(places: Tensor, inside: Tensor, count: int) -> Tensor:
    """Builds the adjacency matrices of sessions, (B, n, n).

    edges[b, u, v] = 1 if a click on v followed one on u.
    """
    edges = torch.zeros(len(places), count * count, device=places.device)
    between = (places[:, :-1] * count + places[:, 1:]).masked_fill(~inside[:, 1:], 0)
    edges.scatter_reduce_(1, between, inside[:, 1:].to(edges.dtype), "amax")
    return edges.reshape(-1, count, count)


class SRGNN(nn.Module):
    """SR-GNN: one gated graph step, attention of the last click, linear read-out.

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
        """Computes scores of all items as the next click, (B, N)."""
        scores: Tensor = self.score(*self.encode(clicks, lengths), self.item.table)
        return scores

    def encode(self, clicks: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes session vectors, click vectors, and the mask of clicks.

        (B, d), (B, L, d) and (B, L).
        """
        graphs = session_graphs(clicks, lengths)
        nodes = self.propagate(self.item.table[graphs.nodes], graphs)
        hidden = nodes.gather(1, graphs.places[:, :, None].expand(-1, -1, nodes.shape[2]))
        last = hidden[torch.arange(len(lengths), device=lengths.device), lengths - 1]
        pooled = self.attention(hidden, last, graphs.inside)
        return self.transform(torch.cat([pooled, last], dim=1)), hidden, graphs.inside

    def propagate(self, nodes: Tensor, graphs: SessionGraphs) -> Tensor:
        """Updates each node, (B, n, d), by its neighbours before and after it."""
        messages = self.edges(nodes, graphs)
        moved: Tensor = self.cell(messages.flatten(0, 1), nodes.flatten(0, 1))
        return moved.reshape(nodes.shape)

    def score(self, sessions: Tensor, hidden: Tensor, inside: Tensor, candidates: Tensor) -> Tensor:
        """Computes inner products with the rows of candidate items, (B, C).

        The clicks do not count.
        """
        del hidden, inside
        return sessions @ candidates.T


class VisitedItems(nn.Module):
    """Item table with a row for each item, (N, d)."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(items, width))


class Edges(nn.Module):
    """Messages along incoming and outgoing edges, (B, n, 2 d).

    A_in (x H_in + c_in) + b_in beside A_out (x H_out + c_out) + b_out.
    """

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
    """Attention of the last click over all clicks, not normalised.

    sum_i alpha_i h_i, alpha_i = q^T sigmoid(W1 h_last + W2 h_i), both with a bias.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last, self.each = nn.Linear(width, width), nn.Linear(width, width)
        self.query = nn.Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, last: Tensor, inside: Tensor) -> Tensor:
        weights = self.query(torch.sigmoid(self.last(last)[:, None] + self.each(hidden)))
        pooled: Tensor = (weights * hidden * inside[:, :, None]).sum(1)
        return pooled
