"""Trains networks of nodes by the product's strategies in one process, without HTTP, and judges them silo by silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from client_service.data.node_graphs import TEST, VALID, NodeShard
from client_service.models.nodes.measures import primary_score
from client_service.training.node_networks import NodeNetworkTrainer, label_probabilities
from client_service.training.training_state import RoundContext
from shared.method.parameters import Arrays, State, Update
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from shared.strategies.strategy import Strategy

CPU = torch.device("cpu")


@dataclass
class SiloRecord:
    """One silo over the rounds: its best round by its own validation, and what it had there."""

    name: str
    valid: float = float("-inf")
    test: float = float("nan")
    round: int = 0


@dataclass(frozen=True)
class NetworkFigures:
    """valid, test: of each silo at its own best round, in the order of names. bytes_up: of one silo over all rounds."""

    valid: tuple[float, ...]
    test: tuple[float, ...]
    rounds: tuple[int, ...]
    bytes_up: int
    state: State = field(repr=False)


def train_federation(
    shards: Sequence[NodeShard], method: MethodSettings, strategy: str, rounds: int, seed: int
) -> NetworkFigures:
    """All silos train in every round; each is judged after it by what it was given. Test data choose nothing."""
    built = build_strategy(strategy, method)
    trainers = {one.name: begin_silo(one, built, method, seed) for one in shards}
    state, sent = State(built.start(method, seed)), dict[str, Update]()
    memories: dict[str, Arrays] = {name: {} for name in trainers}
    records = {name: SiloRecord(name) for name in trainers}
    uploaded = 0
    for number in range(1, rounds + 1):
        for name, trainer in trainers.items():
            trainer.moment = RoundContext(number, rounds, seed)
            given = built.fit_round(trainer, built.personalise(state, sent.get(name)), memories[name])
            sent[name], memories[name] = Update(name, given.arrays, given.scalars), given.memory
            uploaded += sum(4 * np.size(value) for value in given.arrays.values())
        state = built.aggregate(state, list(sent.values()))
        for name, trainer in trainers.items():
            trainer.load(built.personalise(state, sent[name]))
            judge_silo(trainer, records[name], number)
    found = [records[name] for name in sorted(records)]
    return NetworkFigures(
        valid=tuple(one.valid for one in found),
        test=tuple(one.test for one in found),
        rounds=tuple(one.round for one in found),
        bytes_up=uploaded // max(1, len(trainers)),
        state=state,
    )


def begin_silo(shard: NodeShard, strategy: Strategy, method: MethodSettings, seed: int) -> NodeNetworkTrainer:
    """A silo's trainer where a run with this seed begins."""
    trainer = NodeNetworkTrainer(shard, method, CPU, kind=strategy.model)
    trainer.initialise(seed)
    return trainer


def judge_silo(trainer: NodeNetworkTrainer, record: SiloRecord, number: int) -> None:
    """Keep a silo's figures where its validation is better than in any round before."""
    shard, found = trainer.shard, label_probabilities(trainer.model)
    scores = {
        split: primary_score(found[rows], shard.labels[rows], len(shard.classes))
        for split in (VALID, TEST)
        for rows in [shard.nodes_of(split)]
    }
    if scores[VALID] > record.valid or record.round == 0:
        record.valid, record.test, record.round = scores[VALID], scores[TEST], number
