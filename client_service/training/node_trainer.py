"""Labels of one silo's nodes: a closed form on propagated features, and a network beside it that rounds train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.models.nodes.closed_form import (
    DesignSpec,
    NodeGram,
    NodeModel,
    complete_design,
    fit_nodes,
    propagated_blocks,
)
from client_service.training.trainer import Figures, Int64, Trainer
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.strategies.local_client import PLAIN, Objective

CLOSED_FORM = "node_ridge"
SEED = 0  # of what all silos draw alike


@dataclass(frozen=True)
class NodeNetwork:
    """A network of nodes.

    build: makes it for a shard, with parameters that are overwritten; called with rows (B,), or without any, it gives
    logits (B, o): one output for two classes, else one for each. compile: its arrays for `NodeScorer`.
    """

    build: Callable[[NodeShard, MethodSettings], nn.Module]
    compile: Callable[[Any], dict[str, NDArray[Any]]]


NETWORKS: dict[str, NodeNetwork] = {}
"""By the name of the model."""


def design_of(shard: NodeShard, method: MethodSettings) -> DesignSpec:
    """Describes the closed form's design with these settings. SettingsError for a shard of other sizes."""
    sizes = method.nodes
    for name, agreed, own in (
        ("features", sizes.features, shard.features.shape[1]),
        ("classes", sizes.classes, len(shard.classes)),
    ):
        if agreed not in (0, own):
            raise SettingsError(
                f"nodes.{name}: expected {own}, as the shard has, got {agreed}: all silos need the same"
            )
    width = shard.features.shape[1]
    directions = sizes.directions if width > sizes.directions else 0
    return DesignSpec(width, tuple(range(sizes.hops + 1)), directions, sizes.random_features, SEED)


def find_directions(shard: NodeShard, count: int) -> Float64:
    """Computes orthonormal directions (q, count) of most of the shard's features, by one step from drawn ones."""
    drawn = np.random.default_rng(SEED).standard_normal((shard.features.shape[1], count))
    found: Float64 = np.linalg.qr(shard.features.T @ (shard.features @ drawn))[0]
    return found


class NodeTrainer(Trainer):
    """Fits the closed form where it begins, and trains a network, if the model is one, on training nodes.

    closed: what answers without a network: by the silo's own nodes, or with the sums of all silos. alone: by the silo's
    own nodes. projection: of features to the design's directions; None where they are taken as they are.
    """

    task = "nodes"
    shard: NodeShard

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.spec = design_of(self.shard, self.method)
        self.projection = find_directions(self.shard, self.spec.directions) if self.spec.directions else None

    def fuse_with(self, digest: str, pooled: NodeGram, projection: Float64 | None) -> None:
        """Answer by the sums of all silos too, from now on. Slow. digest: of the sums."""
        alone = self.alone
        self.basis, self.projection = digest, projection
        for name in ("blocks", "design", "closed"):
            self.__dict__.pop(name, None)
        self.__dict__["alone"] = alone
        self.__dict__["closed"] = fit_nodes(self.shard, self.design, self.spec, pooled)

    @cached_property
    def blocks(self) -> dict[int, Float32]:
        """Propagated features of all nodes by the power of the propagation, (n, d)."""
        return propagated_blocks(self.shard, self.spec, self.projection)

    @cached_property
    def design(self) -> Float32:
        """The closed form's design of all nodes, (n, D)."""
        return complete_design(self.blocks, self.spec)

    @cached_property
    def alone(self) -> AloneForm:
        """What the silo has without any other. Slow."""
        return AloneForm(fit_nodes(self.shard, self.design, self.spec), self.design)

    @cached_property
    def closed(self) -> NodeModel:
        """The closed form that answers."""
        return self.alone.model

    @property
    def has_network(self) -> bool:
        """Is a network trained, or is the closed form all that there is?"""
        return self.kind in NETWORKS

    def build_model(self) -> nn.Module:
        """The network, or a module without parameters."""
        return NETWORKS[self.kind].build(self.shard, self.method) if self.has_network else nn.Module()

    def train(self, objective: Objective = PLAIN) -> None:
        """Run the round's local epochs. Without a network nothing is trained."""
        if not self.has_network or not len(self.shard.nodes_of(TRAIN)):
            self.figures = Figures(loss=self._closed_loss())
            return
        self.model.train()
        self._seed_dropout()
        super().train(objective)
        self.model.eval()

    def draw_batches(self, generator: np.random.Generator) -> Iterable[Int64]:
        """All training nodes at once, or in batches where they are more than `batch_size`."""
        rows = self.shard.nodes_of(TRAIN)
        size = self.method.batch_size
        if len(rows) <= size:
            return [rows]
        return np.array_split(generator.permutation(rows), -(-len(rows) // size))

    def find_loss(self, rows: Int64) -> Tensor:
        """Cross entropy of the nodes' labels."""
        labels = torch.from_numpy(self.shard.labels[rows]).to(self.device)
        return nn.functional.cross_entropy(class_scores(self.model(torch.from_numpy(rows).to(self.device))), labels)

    @torch.no_grad()
    def network_scores(self) -> Float64:
        """The network's scores of all nodes, (n, c)."""
        self.model.eval()
        found: Float64 = class_scores(self.model()).double().cpu().numpy()
        return found

    def _seed_dropout(self) -> None:
        for module in self.model.modules():
            if (begin := getattr(module, "begin", None)) is not None:
                begin(self.draw_seed("dropout"))

    def _closed_loss(self) -> float:
        """The closed form's cross entropy over training nodes; 0 without one."""
        rows = self.shard.nodes_of(TRAIN)
        if not len(rows):
            return 0.0
        own = self.closed.predict(self.design[rows])[np.arange(len(rows)), self.shard.labels[rows]]
        return float(-np.log(np.maximum(own, 1e-12)).mean())


@dataclass(frozen=True)
class AloneForm:
    """The closed form of a silo's own nodes, with its own design: it may project features otherwise than sums do."""

    model: NodeModel
    design: Float32

    def predict(self) -> Float32:
        """Probabilities of all nodes, (n, c)."""
        return self.model.predict(self.design)


def class_scores(logits: Tensor) -> Tensor:
    """Scores of classes (B, c): of one output, which two classes have, 0 for the first class beside it."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits
