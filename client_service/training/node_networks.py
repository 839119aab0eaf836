"""Trains networks that label nodes, UniFilter and SAGE, on one silo's graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_service.data.node_graphs import TRAIN, NodeShard
from client_service.models.nodes.sage import SAGE, build_sage
from client_service.models.nodes.unifilter import (
    SIGNATURE_TAUS,
    MaskedUniFilter,
    UniFilter,
    build_unifilter,
    measure_signature,
)
from client_service.training.trainer import Int64, Trainer
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.strategies.local_client import PLAIN, Objective

NodeNetwork = UniFilter | SAGE
NETWORKS: dict[str, Callable[[NodeShard, MethodSettings], NodeNetwork]] = {
    "unifilter": build_unifilter,
    "masked_unifilter": partial(build_unifilter, kind=MaskedUniFilter),
    "sage": build_sage,
}


class NodeNetworkTrainer(Trainer):
    """Trains a network by the cross entropy of training nodes' labels.

    There are no private parameters: the graph stays in the silo. A round is one step on all training nodes,
    unless `batch_size` is below their number.
    """

    task = "nodes"
    shard: NodeShard
    model: NodeNetwork

    def build_model(self) -> NodeNetwork:
        """Builds a network of the silo's graph.

        SettingsError if the shard has other features or classes than the run.
        """
        has = (self.shard.features.shape[1], len(self.shard.classes))
        if (expected := (self.method.nodes.features, self.method.nodes.classes)) != has:
            words = f"expected the run's {expected[0]} features and {expected[1]} classes, got {has[0]} and {has[1]}"
            raise SettingsError(
                f"nodes.features, nodes.classes: {words}: join with the federation's columns and classes"
            )
        self._signatures: dict[str, tuple[float, ...]] = {}
        return NETWORKS[self.kind](self.shard, self.method)

    def draw_batches(self, generator: np.random.Generator) -> Iterable[Int64]:
        """Draws batches of training nodes; none where no label is known."""
        rows = generator.permutation(self.shard.nodes_of(TRAIN))
        return np.array_split(rows, -(-len(rows) // self.method.batch_size)) if len(rows) else ()

    def train(self, objective: Objective = PLAIN) -> None:
        """Runs the round's local epochs, with dropout drawn for this round."""
        self._begin_steps()
        super().train(objective)
        self.model.eval()

    def sum_gradients(self) -> tuple[dict[str, Float32], int]:
        """Sums the gradient over all training nodes, and counts these.

        Dropout is drawn for this round.
        """
        self._begin_steps()
        found = super().sum_gradients()
        self.model.eval()
        return found

    def find_loss(self, rows: Int64) -> Tensor:
        """Computes the mean cross entropy of these nodes."""
        logits = self.model(torch.from_numpy(rows).to(self.device))
        labels = torch.from_numpy(self.shard.labels[rows]).to(self.device)
        if logits.shape[1] == 1:
            return torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype))
        return torch.nn.functional.cross_entropy(logits, labels)

    def parameter_groups(self, only: str) -> list[dict[str, Any]]:
        """Groups the filter's coefficients, which have their own rate, and other parameters."""
        rate, filter_rate = self.method.learning_rate, self.method.nodes.filter_learning_rate
        named = [(name, value) for name, value in self.model.named_parameters() if name.startswith(only)]
        sides = (lambda name: name.startswith("filter."), lambda name: not name.startswith("filter."))
        groups = [[value for name, value in named if side(name)] for side in sides]
        rates = (rate if filter_rate is None else filter_rate, rate)
        return [{"params": params, "lr": lr} for params, lr in zip(groups, rates, strict=True) if params]

    def measure(self, name: str) -> tuple[float, ...]:
        """Measures local_steps, or a signature of the graph's bases (FedGSP), once."""
        if name == "local_steps":
            batches = -(-len(self.shard.nodes_of(TRAIN)) // self.method.batch_size)
            return (float(self.method.local_epochs * batches),)
        if name not in SIGNATURE_TAUS:
            return super().measure(name)
        if name not in self._signatures:
            found = measure_signature(self.shard, self.method.nodes.order, name)
            self._signatures[name] = tuple(found.ravel().tolist())
        return self._signatures[name]

    def _begin_steps(self) -> None:
        self.model.train()
        self.model.dropout.restart(self.draw_seed("dropout"))


@torch.no_grad()
def label_probabilities(model: NodeNetwork) -> Float64:
    """Computes the probability of each class for every node, (n, c)."""
    model.eval()
    return probabilities_of(model())


def probabilities_of(logits: Tensor) -> Float64:
    """Computes probabilities (n, c) of logits: (n, 1) of two classes, else (n, c)."""
    both = torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits
    found: Float64 = torch.softmax(both.detach().double(), dim=1).cpu().numpy()
    return found
