"""A batch of click sequences -> the graph of each: its distinct items, and which of them follow which."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SessionGraphs(NamedTuple):
    """B sequences of up to L clicks over up to n distinct items each.

    nodes: items, (B, n), 0 where there is none. places: the node of each click, (B, L). inside: is there a click,
    (B, L). incoming, outgoing: (B, n, n); row v of incoming has 1 / indegree(v) at each node before v, row u of
    outgoing 1 / outdegree(u) at each node after u; rows without an edge are 0. An edge that repeats counts once.
    """

    nodes: Tensor
    places: Tensor
    inside: Tensor
    incoming: Tensor
    outgoing: Tensor


def session_graphs(clicks: Tensor, lengths: Tensor) -> SessionGraphs:
    """clicks: (B, L), anything behind the end of a sequence; lengths: (B,), 1 or more."""
    inside = torch.arange(clicks.shape[1], device=clicks.device) < lengths[:, None]
    nodes, places = _distinct(clicks, inside)
    edges = _edges(places, inside, nodes.shape[1])
    incoming = edges.transpose(1, 2) / edges.sum(1).clamp(min=1.0)[:, :, None]
    outgoing = edges / edges.sum(2).clamp(min=1.0)[:, :, None]
    return SessionGraphs(nodes, places, inside, incoming, outgoing)


def _distinct(clicks: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct items of each row, ascending, (B, n), and for each click its place among them, (B, L)."""
    beyond = torch.iinfo(clicks.dtype).max
    ordered, order = clicks.masked_fill(~inside, beyond).sort(dim=1, stable=True)
    first = torch.ones_like(inside)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    rank = first.cumsum(1) - 1
    places = torch.empty_like(rank).scatter_(1, order, rank)
    real = ordered != beyond
    count = int((rank.masked_fill(~real, 0).amax()) + 1)
    nodes = torch.zeros(len(clicks), clicks.shape[1], dtype=clicks.dtype, device=clicks.device)
    nodes.scatter_(1, rank, ordered.masked_fill(~real, 0))  # what lies behind the end has a place of its own, and is 0
    return nodes[:, :count], places.masked_fill(~inside, 0)


def _edges(places: Tensor, inside: Tensor, count: int) -> Tensor:
    """edges[b, u, v] = 1 where a click on v followed one on u, (B, n, n)."""
    edges = torch.zeros(len(places), count * count, device=places.device)
    between = (places[:, :-1] * count + places[:, 1:]).masked_fill(~inside[:, 1:], 0)
    edges.scatter_reduce_(1, between, inside[:, 1:].to(edges.dtype), "amax")
    return edges.reshape(-1, count, count)
