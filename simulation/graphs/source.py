"""Writes the shards of a graph: a file, a folder, or 'rings'."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from client_service.data.node_files import save_node_shard
from client_service.data.node_graphs import TEST, TRAIN, VALID, NodeShard
from client_service.sums.node_gram import GramPart, explain_large_columns
from shared.errors import DataError, SettingsError
from shared.message import Message
from shared.method.settings import MethodSettings, validate_settings
from shared.sums import list_sums
from shared.sums.node_gram import NODE_GRAM
from simulation.graphs.cut import GraphCut, cut_graph, divide_graph, draw_stratified_splits
from simulation.graphs.generator import GraphSizes, generate_graph
from simulation.graphs.read import DEFAULT_OPTIONS, SHARES, GraphOptions, read_graph
from simulation.partitioning.sources import SUMMARY, USUAL_CLIENTS, Cut, Shards, number_silos
from simulation.progress import step

RINGS = "rings"
OWN_SHARES = (0.6, 0.2, 0.2)  # of the labelled nodes of a silo that joins with a graph of its own


class GraphRules(Message):
    """Rules of `lpsfed partition --task nodes --rule key=value`."""

    official: int | None = Field(None, ge=0, le=99, description="of .npz data, which of the splits that come with them")
    train: float | None = Field(None, gt=0, lt=1, description="share of a silo's labelled nodes for training")
    valid: float | None = Field(None, gt=0, lt=1, description="share of them for validation; the others are for test")
    homophily: tuple[float, ...] = Field(
        GraphSizes.homophily, description=f"{RINGS}: of each platform, share of edges to the same label, as .9/.5/.2"
    )
    accounts: int = Field(GraphSizes.accounts, ge=50, le=100_000, description=f"{RINGS}: of each platform")

    @field_validator("homophily", mode="before")
    @classmethod
    def _divided(cls, given: Any) -> Any:
        return given.split("/") if isinstance(given, str) else given

    @field_validator("homophily")
    @classmethod
    def _shares(cls, given: tuple[float, ...]) -> tuple[float, ...]:
        if not given or any(not 0 <= one <= 1 for one in given):
            raise ValueError("expected shares from 0 to 1 with / between them")
        return given

    @model_validator(mode="after")
    def _leaves_a_test(self) -> Self:
        if (self.train or 0.0) + (self.valid or 0.0) >= 1:
            raise ValueError("expected train + valid below 1")
        return self

    def find_shares(self, usual: tuple[float, float, float]) -> tuple[float, float, float]:
        """Returns the shares of training, validation and test.

        Shares without a rule are divided in the usual proportion.
        """
        train, valid = self.train, self.valid
        if train is None:
            train = usual[0] if valid is None else (1.0 - valid) * usual[0] / (usual[0] + usual[2])
        if valid is None:
            valid = (1.0 - train) * usual[1] / (usual[1] + usual[2])
        return train, valid, 1.0 - train - valid


def parse_graph_rules(changes: dict[str, Any]) -> GraphRules:
    """Parses rules. Raises SettingsError for a rule that is unknown or out of range."""
    return validate_settings(GraphRules, changes)


def cut_node_shards(data: str, cut: Cut, folder: Path) -> Shards:
    """Reads, divides and writes a graph, with a summary beside the shards."""
    if cut.split is not None or cut.min_rating not in (None, "usual"):
        raise SettingsError("--split, --min-rating: expected none with nodes, whose labels are split (--rule train=.2)")
    if cut.scenario is not None:
        raise SettingsError(f"--scenario: expected none with nodes, got {cut.scenario}")
    clients, rules = cut.clients or USUAL_CLIENTS, parse_graph_rules(dict(cut.rules))
    if data == RINGS:
        graph, divided = generate_graph(
            cut.split_seed, clients, GraphSizes(accounts=rules.accounts, homophily=rules.homophily)
        )
        if cut.method is not None:
            divided = cut_graph(graph, clients, cut.number, cut.method)
    else:
        options = cut.file_options if isinstance(cut.file_options, GraphOptions) else DEFAULT_OPTIONS
        graph = read_graph(Path(data), cut.edges, options, official=rules.official)
        divided = cut_graph(graph, clients, cut.number, cut.method)
    with step("dividing the graph"):
        shards = divide_shards(graph, divided, rules, cut.split_seed)
        for shard in shards:
            save_node_shard(folder / shard.name, shard)
    summary = _summarise(graph, shards, divided, cut.number)
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1), encoding="utf-8")
    return Shards(tuple(folder / shard.name for shard in shards), summary)


def divide_shards(graph: NodeShard, cut: GraphCut, rules: GraphRules, split_seed: int) -> list[NodeShard]:
    """Builds a shard for each silo. A split in the data is kept."""
    names = [f"client-{number}" for number in number_silos(len(cut.nodes))]
    own = rules.official is not None or has_split(graph)
    return divide_graph(
        graph, cut, split_seed=None if own else split_seed, names=names, shares=rules.find_shares(SHARES)
    )


def has_split(graph: NodeShard) -> bool:
    """Tells whether the data say which nodes are for validation or test."""
    return bool(np.isin(graph.splits, (VALID, TEST)).any())


def split_own_graph(graph: NodeShard, name: str, rules: GraphRules, seed: int = 0) -> NodeShard:
    """Builds the shard of a silo's own graph, and draws a split per class.

    A split in the data is kept. Most labels are for training: figures of a silo's own graph need not be comparable
    with published ones.
    """
    if has_split(graph):
        return replace(graph, name=name)
    return replace(graph, name=name, splits=draw_stratified_splits(graph.labels, seed, rules.find_shares(OWN_SHARES)))


def require_summable(shard: NodeShard, method: MethodSettings) -> None:
    """Raises DataError, with names, for features whose Gram sums would overflow."""
    basis = next((one for one in list_sums(method).values() if one.kind == NODE_GRAM.name), None)
    if basis is None:
        return
    nodes = method.nodes.model_copy(update={"features": len(shard.feature_names), "classes": len(shard.classes)})
    if problem := explain_large_columns(GramPart(shard, basis.least_pairs), nodes, basis.least_silos):
        raise DataError(problem)


def _summarise(graph: NodeShard, shards: Sequence[NodeShard], cut: GraphCut, number: int) -> dict[str, Any]:
    how = {"method": cut.method, "partition": number, "edges_kept": cut.kept}
    alike = [homophily for shard in shards if (homophily := shard.edge_homophily()) is not None]
    caption = f"{cut.kept:.1%} of the edges kept by the cut {cut.method}"
    caption += f"; homophily of edges {min(alike):.2f} to {max(alike):.2f}" if alike else ""
    words = {"counted": "nodes", "shown": ["edges", "train", "valid", "test"], "caption": caption}
    clients = [_measure_shard(shard) for shard in shards]
    return {"data": graph.name, **how, "clients": clients, **words, "notes": list(graph.notes)}


def _measure_shard(shard: NodeShard) -> dict[str, Any]:
    """Counts nodes as users, and classes as items."""
    splits = {name: len(shard.nodes_of(split)) for name, split in (("train", TRAIN), ("valid", VALID), ("test", TEST))}
    return {
        "client": shard.name,
        "users": len(shard.node_ids),
        "items": len(shard.classes),
        "edges": shard.edges,
        **splits,
        "homophily": shard.edge_homophily(),
    }
