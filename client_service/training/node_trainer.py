"""Trainer of a silo's node labels: a closed form, and beside it a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from client_service.data.node_graphs import TRAIN, VALID, NodeShard
from client_service.models.nodes.closed_form import (
    DesignSpec,
    NodeModel,
    build_design_spec,
    complete_design,
    find_own_projection,
    fit_nodes,
    propagated_blocks,
    refit_nodes,
)
from client_service.models.nodes.measures import primary_score
from client_service.sums.node_directions import require_columns
from client_service.sums.node_gram import SummedGram
from client_service.training.node_networks import NETWORKS, NodeNetwork, NodeNetworkTrainer
from client_service.training.trainer import Figures
from shared.method.graph import Float64
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Float32
from shared.strategies.local_client import PLAIN, Objective


def complete_sizes(shard: NodeShard, nodes: NodeSettings) -> NodeSettings:
    """Completes settings by the sizes of the shard.

    SettingsError if the settings name others.
    """
    sizes = {"features": shard.features.shape[1], "classes": len(shard.classes)}
    whole = nodes.model_copy(update={name: size for name, size in sizes.items() if getattr(nodes, name) == 0})
    require_columns(shard, whole)
    return whole


@dataclass(frozen=True)
class ClosedForm:
    """Fitted closed form, with the design of all nodes, (n, D).

    projection: of features to the design's directions, (q, r); None if they are taken as they are. shard: with
    border sums where these count.
    """

    model: NodeModel
    spec: DesignSpec
    design: Float32
    projection: Float64 | None
    shard: NodeShard

    def predict(self) -> Float64:
        """Computes probabilities of all nodes, (n, c)."""
        return self.model.predict(self.design).astype(np.float64)


class NodeTrainer(NodeNetworkTrainer):
    """Trainer of node labels: fits the closed form, and trains a network if asked.

    summed: the Gram sums of all silos; None before they are made.
    """

    summed: SummedGram | None = None

    def add_sums(self, known: SummedGram) -> None:
        """Adds the sums of all silos, by which the closed form answers from now on."""
        self.summed, self.basis = known, known.digest
        for fitted in ("closed_form", "refitted_form"):
            self.__dict__.pop(fitted, None)

    @property
    def has_network(self) -> bool:
        """Whether a network is trained beside the closed form."""
        return self.kind in NETWORKS

    @cached_property
    def sizes(self) -> NodeSettings:
        """Settings with the shard's sizes."""
        return complete_sizes(self.shard, self.method.nodes)

    @cached_property
    def alone(self) -> ClosedForm:
        """Fits the closed form of the silo's own nodes and edges. Slow."""
        return self._fit_alone(replace(self.shard, borders=None))

    @cached_property
    def closed_form(self) -> ClosedForm:
        """Fits the closed form that answers, with all silos' sums once made. Slow."""
        with_borders = self._fit_with_sums(self.shard)
        if self.shard.borders is None:
            return with_borders
        # false rows of border sums are checked by the silo's own validation alone, as false Gram sums are
        valid = self.shard.nodes_of(VALID)
        scores = [self._validate(one) for one in (self.alone, with_borders)]
        if len(valid) and scores[0] > scores[1] + 1.0 / len(valid):
            return self._fit_with_sums(replace(self.shard, borders=None))
        return with_borders

    @cached_property
    def refitted_form(self) -> ClosedForm:
        """Fits the closed form that answers again, on all labelled nodes. Slow.

        Validation has chosen it by training nodes alone, and cannot evaluate this one.
        """
        closed = self.closed_form
        pooled = None if self.summed is None else self.summed.pool(closed.shard, closed.design)
        return replace(closed, model=refit_nodes(closed.model, closed.shard, closed.design, pooled))

    def _validate(self, closed: ClosedForm) -> float:
        valid = self.shard.nodes_of(VALID)
        return primary_score(closed.predict()[valid], self.shard.labels[valid], len(self.shard.classes))

    def _fit_with_sums(self, shard: NodeShard) -> ClosedForm:
        if self.summed is None:
            return self.alone if shard.borders is None else self._fit_alone(shard)
        return self._fit(shard, self.summed.find_projection(self.sizes), self.summed)

    @torch.no_grad()
    def class_scores(self) -> Float64:
        """Computes the network's scores, (n, c): of two classes the first has 0."""
        self.model.eval()
        logits = self.model().double().cpu()
        scores = torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits
        found: Float64 = scores.numpy()
        return found

    def build_model(self) -> NodeNetwork:
        """Builds the network, or a module without parameters."""
        return super().build_model() if self.has_network else cast(NodeNetwork, nn.Module())

    def train(self, objective: Objective = PLAIN) -> None:
        """Runs the round's local epochs, if there are a network and training nodes."""
        if self.has_network and len(self.shard.nodes_of(TRAIN)):
            super().train(objective)
        else:
            self.figures = Figures(loss=self._closed_loss())

    def parameter_groups(self, only: str) -> list[dict[str, Any]]:
        return super().parameter_groups(only) if self.has_network else []

    def _fit_alone(self, shard: NodeShard) -> ClosedForm:
        spec = build_design_spec(self.sizes)
        return self._fit(shard, find_own_projection(shard, spec))

    def _fit(self, shard: NodeShard, projection: Float64 | None, summed: SummedGram | None = None) -> ClosedForm:
        spec = build_design_spec(self.sizes)
        design = complete_design(propagated_blocks(shard, spec, projection), spec)
        pooled = None if summed is None else summed.pool(shard, design)
        return ClosedForm(fit_nodes(shard, design, spec, pooled), spec, design, projection, shard)

    def _closed_loss(self) -> float:
        """Computes the closed form's cross entropy over training nodes; 0 without one."""
        rows = self.shard.nodes_of(TRAIN)
        if not len(rows):
            return 0.0
        own = self.closed_form.predict()[rows, self.shard.labels[rows]]
        return float(-np.log(np.maximum(own, 1e-12)).mean())


def propagate_all(shard: NodeShard, closed: ClosedForm) -> Float32:
    """Computes P^k x of all nodes, (n, J + 1, d).

    k is 0 to J, the largest power of the closed form.
    """
    powers = tuple(range(max(closed.spec.powers) + 1))
    blocks = propagated_blocks(shard, replace(closed.spec, powers=powers), closed.projection)
    return np.stack([blocks[power] for power in powers], axis=1)
