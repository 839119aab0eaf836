"""Networks of nodes as benchmark methods: the product's strategies in one process, without HTTP.

Each silo answers by the round that its own validation prefers. Test nodes choose nothing. Validation on seed 100
chose learning rate, tau (1 among them) and dropout: once for methods that train in the silos, for gradients, and for
SAGE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.nodes.cuts import DividedGraph
from benchmarks.nodes.methods import NodeMethod, SiloScores
from client_service.data.node_graphs import VALID, Int64, NodeShard
from client_service.models.nodes.measures import primary_score
from client_service.training.node_networks import NodeNetworkTrainer, label_probabilities
from client_service.training.training_state import RoundContext
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Float32, State, Update
from shared.method.settings import MethodSettings, override_settings
from shared.strategies import build_strategy
from shared.strategies.collaboration_graph import recall_collaboration
from shared.strategies.strategy import Strategy

CPU = torch.device("cpu")
ROUNDS = 100


@dataclass
class SiloRecord:
    """Best round of one silo by its own validation, with the scores of all nodes."""

    valid: float = float("-inf")
    round: int = 0
    scores: Float32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def judge(self, trainer: NodeNetworkTrainer, number: int) -> None:
        """Keeps the scores of a round that validates better than all before."""
        shard, found = trainer.shard, label_probabilities(trainer.model)
        rows = shard.nodes_of(VALID)
        valid = judge_validation(found[rows], shard.labels[rows])
        if valid > self.valid or self.round == 0:
            self.valid, self.round, self.scores = valid, number, found.astype(np.float32)


def judge_validation(probabilities: Float64, labels: Int64) -> float:
    """Computes the area under the curve of two classes; of more, minus the cross entropy.

    Accuracy ties over few nodes.
    """
    if probabilities.shape[1] == 2:
        return primary_score(probabilities, labels, 2)
    known = np.maximum(probabilities[np.arange(len(labels)), labels], 1e-9)
    return float(np.log(known).mean()) if len(labels) else float("-inf")


@dataclass(frozen=True)
class FederationRecord:
    """Records of all silos over a run.

    records: in the order given. bytes_up: of one silo over all rounds, the mean over silos.
    """

    records: tuple[SiloRecord, ...]
    bytes_up: float
    state: State = field(repr=False)

    @property
    def valid(self) -> float:
        """Mean over silos of the best round's validation."""
        return float(np.mean([one.valid for one in self.records]))


def train_network_federation(
    shards: Sequence[NodeShard], method: MethodSettings, strategy: str, rounds: int, seed: int
) -> FederationRecord:
    """Trains a network in all silos in every round, and evaluates each silo's model."""
    built = build_strategy(strategy, method)
    trainers = {one.name: begin_silo(one, built, method, seed) for one in shards}
    state, sent = State(built.start(method, seed)), dict[str, Update]()
    memories: dict[str, Arrays] = {name: {} for name in trainers}
    records, uploaded = {name: SiloRecord() for name in trainers}, 0
    for number in range(1, rounds + 1):
        for name, trainer in trainers.items():
            trainer.context = RoundContext(number, rounds, seed)
            given = built.fit_round(trainer, built.personalise(state, sent.get(name)), memories[name])
            sent[name], memories[name] = Update(name, given.arrays, given.scalars), given.memory
            uploaded += sum(4 * np.size(value) for value in given.arrays.values())
        state = built.aggregate(state, list(sent.values()))
        for name, trainer in trainers.items():
            trainer.load(built.personalise(state, sent[name]))
            records[name].judge(trainer, number)
    return FederationRecord(tuple(records.values()), uploaded / max(1, len(trainers)), state)


def begin_silo(shard: NodeShard, strategy: Strategy, method: MethodSettings, seed: int) -> NodeNetworkTrainer:
    """Begins the trainer of a silo in a run with this seed."""
    trainer = NodeNetworkTrainer(shard, method, CPU, kind=strategy.model)
    trainer.initialise(seed)
    return trainer


WIDE: Mapping[str, Any] = {"nodes.order": 5, "nodes.tau": 1.0, "learning_rate": 0.02, "nodes.dropout": 0.5}
LOCAL: Mapping[str, Mapping[str, Any]] = {
    "minesweeper": {"nodes.order": 10, "nodes.tau": 0.7, "learning_rate": 0.05},
    "tolokers": {"nodes.order": 10, "nodes.tau": 1.0, "learning_rate": 0.02},
    "cora": WIDE,
    "citeseer": WIDE,
}
"""Settings of methods that train in the silos, by graph."""
GRADIENTS: Mapping[str, Mapping[str, Any]] = {
    "minesweeper": {"nodes.order": 10, "nodes.tau": 1.0, "learning_rate": 0.05},
    "tolokers": LOCAL["tolokers"],
    "cora": {**WIDE, "learning_rate": 0.01, "strategy.decay": 0.02},
    "citeseer": {**WIDE, "learning_rate": 0.01, "strategy.decay": 0.02},
}
SAGE: Mapping[str, Any] = {"model": "sage", "layers": 4, "learning_rate": 0.02, "nodes.dropout": 0.2}
USUAL: Mapping[str, Any] = {"nodes.order": 5, "nodes.tau": 1.0, "learning_rate": 0.01}
"""Settings for graphs that have none of their own."""


def network_settings(
    given: DividedGraph, known: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any]
) -> MethodSettings:
    """Completes the settings of the graph's networks by its sizes and the method's changes."""
    chosen = next((known[name] for name in known if given.name.startswith(name)), USUAL)
    sizes = {"nodes.features": given.nodes.features, "nodes.classes": given.nodes.classes}
    return override_settings({}, {"model": "unifilter", **sizes, **chosen, **changes})


def run_network(
    given: DividedGraph,
    strategy: str,
    changes: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]],
    rounds: int,
) -> SiloScores:
    """Trains a federation of the draw's silos."""
    method = network_settings(given, known, changes)
    found = train_network_federation(given.silos, method, strategy, rounds, given.seed)
    more: dict[str, Any] = {"valid": found.valid, "rounds": [one.round for one in found.records]}
    weights = recall_collaboration(found.state.memory)
    if weights is not None:
        own = np.diagonal(weights.weights, axis1=1, axis2=2)
        more["weights"] = {
            "overall": weights.overall.round(4).tolist(),
            "own": float(own.mean()),
            "farthest_from_mean": float(np.abs(weights.weights - 1 / len(weights.clients)).max()),
            "effective_columns": weights.columns.mean(axis=1).round(1).tolist(),
        }
    return SiloScores(tuple(one.scores for one in found.records), found.bytes_up, more)


def describe_network(
    name: str,
    title: str,
    strategy: str,
    changes: Mapping[str, Any] | None = None,
    known: Mapping[str, Mapping[str, Any]] = LOCAL,
    rounds: int = ROUNDS,
) -> NodeMethod:
    """Describes a method that trains networks."""
    own = partial(run_network, strategy=strategy, changes=changes or {}, known=known, rounds=rounds)
    return NodeMethod(name, title, own)


FEDGSP_FORMS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("literal", "FedGSP as printed", {"strategy.weight_floor": 0.0, "strategy.gamma": 1.0}),
    ("floored", "FedGSP, weights with a floor", {}),
    ("low", "FedGSP, only R: likeness", {"strategy.terms": "low"}),
    ("high", "FedGSP, only S: unlikeness", {"strategy.terms": "high"}),
    ("uniform", "FedGSP, uniform r and s", {"strategy.uniform": True}),
    ("mean", "FedGSP with W = 1/M", {"strategy.gamma": 1e12}),
    ("filter", "coefficients alone are shared", {"strategy.shares": "filter"}),
)
"""Forms of FedGSP without a floor on a silo's own weight: name, title, settings."""
NETWORK_METHODS: Mapping[str, NodeMethod] = {
    one.name: one
    for one in (
        describe_network("gradients", "summed gradients, one Adam at the server", "fedsgd", known=GRADIENTS),
        describe_network("gradients_sage", "summed gradients of SAGE", "fedsgd", SAGE, known={}, rounds=2 * ROUNDS),
        describe_network("network_alone", "UniFilter of each silo alone", "local"),
        describe_network("fedavg", "FedAvg of UniFilter", "fedavg"),
        describe_network("fedprox", "FedProx, two local steps", "fedprox", {"local_epochs": 2}),
        describe_network("fedper", "FedPer: the predictive layer is private", "fedper"),
        describe_network("fedpub", "FedPUB: means by functional embeddings, masks", "fedpub"),
        describe_network("fedgsp", "FedGSP, half of its own at least", "fedgsp"),
        *(
            describe_network(f"fedgsp_{name}", title, "fedgsp", {"strategy.least_own": 0.0, **changes})
            for name, title, changes in FEDGSP_FORMS
        ),
    )
}
