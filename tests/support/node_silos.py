"""A drawn graph of nodes, cut into silos that know the ids of their nodes' neighbours in other silos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from client_service.data.foreign_edges import build_foreign_edges
from client_service.data.node_graphs import NodeShard, build_adjacency, sort_entries
from client_service.sums.node_borders import NODE_BORDERS_SUM, Borders
from client_service.sums.silo_sum import SumRound, Sums
from shared.method.settings import MethodSettings, method_settings
from shared.sums.node_borders import TABLE


def draw_graph(nodes: int, share: float, features: int = 3, seed: int = 4) -> NodeShard:
    """Draws a graph in which this share of the pairs are neighbours."""
    generator = np.random.default_rng(seed)
    first, second = np.nonzero(np.triu(generator.random((nodes, nodes)) < share, 1))
    values = generator.random((nodes, features)).astype(np.float32)
    labels = generator.integers(0, 2, nodes)
    return NodeShard(
        "whole",
        tuple(f"account-{one:04}" for one in range(nodes)),
        sort_entries(sparse.csr_array(values)),
        tuple(f"x{one}" for one in range(features)),
        build_adjacency(first, second, generator.uniform(0.5, 2.0, len(first)).astype(np.float32), nodes),
        labels,
        ("fine", "bad"),
        generator.integers(0, 3, nodes).astype(np.int8),
    )


def cut_graph(graph: NodeShard, owners: Sequence[int]) -> list[NodeShard]:
    """A shard for each owner 0, 1, ...; -1: a node of no silo, whose id its neighbours' silos know."""
    of = np.asarray(owners)
    found = []
    for owner in range(int(of.max()) + 1):
        own = np.flatnonzero(of == owner)
        beyond = sparse.coo_array(graph.adjacency[own][:, np.flatnonzero(of != owner)])
        ids = [graph.node_ids[one] for one in np.flatnonzero(of != owner)[beyond.col]]
        found.append(
            NodeShard(
                f"silo-{owner}",
                tuple(graph.node_ids[one] for one in own),
                sort_entries(graph.features[own]),
                graph.feature_names,
                sort_entries(graph.adjacency[own][:, own]),
                graph.labels[own],
                graph.classes,
                graph.splits[own],
                foreign=build_foreign_edges(beyond.row, ids, beyond.data, len(own)),
            )
        )
    return found


def border_settings(features: int = 3, *, least: int = 5, own: int = 3, numbers: int = 1 << 14) -> MethodSettings:
    """Settings with which borders of small graphs are summed, over two hops."""
    nodes = {"features": features, "classes": 2, "border_least": least, "border_own": own, "border_numbers": numbers}
    return method_settings(
        **{"basis.kind": "node_borders"}, **{f"nodes.{name}": value for name, value in nodes.items()}
    )


@dataclass
class BorderRun:
    """Border sums of silos, without a network. sums: of each round so far."""

    shards: Sequence[NodeShard]
    method: MethodSettings
    federation: str = "f"

    def __post_init__(self) -> None:
        self.sums: dict[int, Sums] = {}

    def secret(self, place: int) -> bytes:
        """A silo's secret of this run."""
        return bytes([place + 1] * 32)

    def at(self, place: int, number: int, sums: Mapping[int, Sums]) -> SumRound:
        """A round as a silo sees it."""
        shard = self.shards[place]
        more = {"federation": self.federation, "secret": self.secret(place)}
        return SumRound(shard, self.method, 5, len(self.shards), number, sums, **more)

    def part(self, place: int, number: int) -> Sums:
        """What a silo adds."""
        return NODE_BORDERS_SUM.add(self.at(place, number, self.sums))

    def sum_round(self, number: int, more: Sums | None = None) -> None:
        """Adds the parts of all silos; more: of one that lies."""
        parts = [self.part(place, number) for place in range(len(self.shards))] + ([] if more is None else [more])
        self.sums[number] = {TABLE: np.sum([one[TABLE] for one in parts], axis=0, dtype=np.uint32)}

    def finish(self) -> Borders:
        """What all silos keep."""
        for number in range(len(self.sums) + 1, self.method.basis.rounds + 1):
            self.sum_round(number)
        found = NODE_BORDERS_SUM.finish(self.at(0, self.method.basis.rounds, self.sums))
        assert isinstance(found, Borders)
        return found

    def completed(self) -> list[NodeShard]:
        """The shards with what each silo reads."""
        known = self.finish()
        return [known.complete(shard, self.secret(place)) for place, shard in enumerate(self.shards)]
