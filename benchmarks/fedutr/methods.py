"""Scores items by the methods of FedUTR's tables.

They are baselines without training, strategies with an item table, and FedUTR's ablations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse

from benchmarks.fedutr.sets import Int64, LeaveOneOut, Scores, judge_scores
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.model_store.model_files import freeze
from client_service.models.encoders.fedutr import FedUTR
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext
from shared.method.settings import MethodSettings, method_settings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import TABLE_DEVIATION
from shared.strategies import build_strategy
from shared.strategies.local_client import LocalClient
from simulation.experiments.devices import DevicePlan, train_devices

CPU = torch.device("cpu")
TAKEN: dict[str, Any] = {"strategy.taken_negatives": True}
RIDGES = (30.0, 100.0, 300.0, 1000.0)  # of EASE; validation chooses
NEIGHBOURS, SHRINKAGES = 20, (1.0, 10.0, 100.0, 1000.0)  # of itemKNN
POPULARITY_WEIGHTS = (0.0, 0.1, 0.3, 1.0)  # of popularity beside EASE
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedmf": ("fedmf", {}),
    "fedmf+text": ("fedmf", {"item_start": "text"}),
    "fedrap": ("fedrap", {}),
    "fedrap+text": ("fedrap", {"item_start": "text"}),
    "pfedrec": ("pfedrec", {}),
    "pfedrec+text": ("pfedrec", {"item_start": "text"}),
    "fedutr": ("fedutr", {}),
    "fedutr_sar": ("fedutr_sar", {}),
    "fedutr-urm": ("fedutr", {"item_start": "random"}),
    "fedutr-cifm": ("fedutr", {"strategy.fusion": False}),
    "fedutr-lam": ("fedutr", {"strategy.adaptation": False}),
    "fedutr-l1": ("fedutr", {"strategy.sparsity": 0.0}),
    "fedutr-layernorm": ("fedutr", {"strategy.normalise": False}),
    "fedutr_sar-layernorm": ("fedutr_sar", {"strategy.normalise": False}),
    "fedutr+taken": ("fedutr", {"strategy.taken_negatives": True}),
    "fedutr+noise.1": ("fedutr", {"strategy.noise_scale": 0.1}),
    "fedutr+noise.5": ("fedutr", {"strategy.noise_scale": 0.5}),
}
"""Strategy and changed settings by row: Tables III to VI, and LayerNorm by itself."""
Figures = dict[str, float]


def score_by_popularity(found: LeaveOneOut) -> Scores:
    """Scores each item by the number of its users in all silos, (M, N)."""
    counts = found.whole.train.sum(0).astype(np.float32)
    return np.broadcast_to(counts, found.whole.train.shape)


def score_by_ease(found: LeaveOneOut) -> Scores:
    """Scores items by EASE on all silos' users, plus weighted popularity.

    Validation chooses the ridge and the weight of popularity.
    """
    train = found.whole.train
    gram, counts = (train.T @ train).toarray(), np.log1p(train.sum(0))
    best: tuple[float, Scores] = (-1.0, score_by_popularity(found))
    for ridge in RIDGES:
        inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
        weights = -inverse / np.diag(inverse)
        np.fill_diagonal(weights, 0.0)
        scores = np.asarray(train @ weights)
        for weight in POPULARITY_WEIGHTS:
            both = (scores / scores.std() + weight * counts / counts.std()).astype(np.float32)
            value = judge_scores(found, both, "valid")["ndcg10_all"]
            best = max(best, (value, both), key=lambda pair: pair[0])
    return best[1]


def score_by_neighbours(found: LeaveOneOut) -> Scores:
    """Scores items by cosines of their 20 nearest neighbours (itemKNN), (M, N).

    Validation chooses a shrinkage added to the product of lengths, so that items that met once are no nearest
    neighbours.
    """
    train = found.whole.train
    gram = (train.T @ train).toarray()
    lengths = np.sqrt(np.diag(gram))
    np.fill_diagonal(gram, 0.0)
    best: tuple[float, Scores] = (-1.0, score_by_popularity(found))
    for more in SHRINKAGES:
        cosines = gram / (np.outer(lengths, lengths) + more)
        least = np.partition(cosines, -NEIGHBOURS, axis=0)[-NEIGHBOURS]
        scores = np.asarray(train @ np.where(cosines >= least, cosines, 0.0), dtype=np.float32)
        best = max(best, (judge_scores(found, scores, "valid")["ndcg10_all"], scores), key=lambda pair: pair[0])
    return best[1]


def make_fusion_scorer(shards: Sequence[Shard]) -> Callable[[LeaveOneOut], Scores]:
    """Makes a scorer by LPSFed's closed-form start of each shard.

    Each shard is fitted on its own, and its validation items choose the fusion.
    """

    def score(found: LeaveOneOut) -> Scores:
        rows = found.silos if len(shards) > 1 else (np.arange(len(found.whole.user_ids)),)
        scores = np.empty(found.whole.train.shape, np.float32)
        for place, shard in zip(rows, shards, strict=True):
            method = method_settings(catalogue=len(shard.item_ids))
            served = freeze("start", ItemTrainer(shard, low_spectrum(shard.train, method.cutoff), method, CPU))
            scores[place] = score_all_items(served.ranker, shard)
        return scores

    return score


def score_all_items(ranker: Any, shard: Shard) -> Scores:
    """Scores all items for each user of a shard, (M, N)."""
    every = np.arange(len(shard.user_ids))
    columns = np.broadcast_to(np.arange(len(shard.item_ids)), shard.train.shape)
    found: Scores = ranker.scores(every, columns)
    return found


class StatefulClients:
    """Clients that keep their private parameters and optimisers between rounds.

    A client is a silo, or the device of one user.
    """

    def __init__(self, shards: Sequence[Shard], method: MethodSettings, kind: str) -> None:
        spectrum = low_spectrum(sparse.csr_array(np.eye(2)), 1)  # no model with an item table reads it
        self.trainers = {one.name: ItemTrainer(one, spectrum, method, CPU, kind=kind) for one in shards}
        self.names: Sequence[str] = tuple(self.trainers)

    def visit(self, device: str, context: RoundContext) -> LocalClient:
        """Returns the client's own trainer for this round."""
        self.trainers[device].context = context
        return self.trainers[device]

    def score_users(self, found: LeaveOneOut) -> Scores:
        """Scores all items for each user by the model of his client, (M, N)."""
        scores = np.empty(found.whole.train.shape, np.float32)
        for rows, trainer in zip(found.silos, self.trainers.values(), strict=True):
            ranker = trainer.model.freeze()
            scores[rows] = ranker.users.embedding @ ranker.items.embedding.T
        return scores


def read_loss(client: LocalClient) -> float:
    """Returns the mean loss of the client's last trained round."""
    assert isinstance(client, ItemTrainer)
    return client.figures.loss


def score_cold_items_by_fedutr(
    train: sparse.csr_array, features: Scores, users: Int64, cold: Int64, steps: int, seed: int
) -> Scores:
    """Trains FedUTR in one silo of all users and scores cold items, (B, C).

    train: (M, N). features: the items' text, (N, d). users: rows of the B users. cold: columns of the C cold items.
    steps: of the optimiser, rounded to whole epochs, at least one.
    """
    names, items = ([f"{number:07d}" for number in range(size)] for size in train.shape)
    nothing = sparse.csr_array(train.shape)
    shard = build_shard_from_matrices("all", names, items, [train, nothing, nothing], places=np.arange(len(items)))
    method = method_settings(catalogue=len(items), width=features.shape[1], learning_rate=0.01, **TAKEN)
    clients = StatefulClients([shard], method, "fedutr")
    (trainer,) = clients.trainers.values()
    encoder = trainer.model.encoder
    assert isinstance(encoder, FedUTR) and encoder.item.text is not None
    encoder.item.text.copy_(torch.from_numpy(features * np.float32(TABLE_DEVIATION * np.sqrt(features.shape[1]))))
    rounds = max(1, round(steps / len(trainer.batches)))
    for _ in train_devices(DevicePlan("fedutr", method, rounds, 1, seed), clients, read_loss):
        pass
    ranker = trainer.model.freeze()
    found: Scores = ranker.users.embedding[users] @ ranker.items.embedding[cold].T
    return found


class RoundFigures(NamedTuple):
    """The validation and test figures of the models after one round."""

    number: int
    valid: Figures
    test: Figures


def train_rounds(
    found: LeaveOneOut, strategy: str, changes: Mapping[str, Any], rounds: int, seed: int, sample: int = 0
) -> Iterator[RoundFigures]:
    """Trains a strategy and measures the clients' models after each round.

    A client then ranks with the aggregator's answer and its private parameters.
    """
    method = method_settings(**{"catalogue": len(found.whole.item_ids), **changes})
    built = build_strategy(strategy, method)
    shards = found.make_shards()
    clients = StatefulClients(shards, method, built.model)
    plan = DevicePlan(strategy, method, rounds, sample or len(shards), seed)
    for one in train_devices(plan, clients, read_loss):
        received = built.personalise(one.state, None)
        for trainer in clients.trainers.values():
            trainer.load(received)
        scores = clients.score_users(found)
        yield RoundFigures(one.number, judge_scores(found, scores, "valid"), judge_scores(found, scores, "test"))
