"""Node graphs of the benchmark: their files, their settings, and a draw of silos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import VARIABLE, data_folder
from client_service.data.node_graphs import UNLABELLED, Int64, NodeShard
from shared.errors import SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.settings import MethodSettings, method_settings
from simulation.graphs.cut import cut_graph, divide_graph
from simulation.graphs.read import read_graph

SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"
SETTINGS: Mapping[str, Mapping[str, Any]] = {"minesweeper": {"nodes.random_features": 0}}
"""Settings other than the defaults, chosen by validation on seeds from 100: less than 10 kB a silo."""


@dataclass(frozen=True)
class DividedGraph:
    """One draw of a benchmark: silos of one graph, and the whole graph.

    The whole graph has the silos' splits. rows: of each silo's nodes in the whole graph. kept: share of edges inside
    silos. seed: of cut and splits.
    """

    name: str
    whole: NodeShard
    silos: tuple[NodeShard, ...]
    rows: tuple[Int64, ...]
    method: MethodSettings
    seed: int
    cut: str = "none"
    kept: float = 1.0
    notes: tuple[str, ...] = field(default=())

    @property
    def nodes(self) -> NodeSettings:
        """Settings of nodes, with the graph's sizes."""
        return self.method.nodes


def locate_graph_file(name: str, data: str | None) -> Path:
    """Finds a graph by its path, or by its name among the data sets.

    SettingsError if there is none.
    """
    if Path(name).exists():
        return Path(name)
    folder = data_folder(data) or SHARED_DATA
    found = sorted(folder.glob(f"*/{name}.npz")) or sorted(folder.glob(f"*/{name}_filtered.npz"))
    if not found:
        raise SettingsError(
            f"nodes: expected the file of a graph or the name of one in --data ({VARIABLE}), got {name!r}, and none"
            f" in {folder}"
        )
    return found[0]


def graph_settings(graph: NodeShard, changes: Mapping[str, Any]) -> MethodSettings:
    """Returns the settings of a graph, with its sizes.

    changes: by dotted names. SettingsError for an unknown one.
    """
    known = next((SETTINGS[name] for name in SETTINGS if graph.name.startswith(name)), {})
    sizes = {"nodes.features": graph.features.shape[1], "nodes.classes": len(graph.classes)}
    return method_settings(**{**sizes, **known, **changes})


def divide_by_seed(
    path: Path,
    parts: int,
    seed: int,
    *,
    shares: tuple[float, float, float],
    cut: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> DividedGraph:
    """Reads a graph, cuts it into silos, and draws their splits, all by one seed."""
    graph = read_graph(path)
    method = graph_settings(graph, changes or {})
    found = cut_graph(graph, parts, seed, cut)
    silos = divide_graph(graph, found, split_seed=seed, shares=shares)
    splits = np.full(len(graph.node_ids), UNLABELLED, np.int8)
    for silo, rows in zip(silos, found.nodes, strict=True):
        splits[rows] = silo.splits
    return DividedGraph(
        graph.name, graph.with_splits(splits), tuple(silos), found.nodes, method, seed, found.method, found.kept
    )


def take_official(path: Path, number: int, changes: Mapping[str, Any] | None = None) -> DividedGraph:
    """Reads a graph with one of the splits that come with it, as one silo."""
    graph = read_graph(path, official=number)
    rows = np.arange(len(graph.node_ids))
    return DividedGraph(graph.name, graph, (graph,), (rows,), graph_settings(graph, changes or {}), number)
