"""The centralised reference: the clients' encoder on the whole data set as one shard, judged client by client.

It sees the edges that the cut drops. It ranks, for each client's users, that client's items alone, so that its figures
stand beside the others; its best round is the one with the best client mean on validation items.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_service.data import Shard, read_shard
from client_service.evaluation.metrics import PRIMARY
from client_service.evaluation.ranking import TopItems, on_test, on_validation, validation_users
from client_service.serving.model_store import freeze
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from simulation.experiments.pooled import ClientSlice, sorted_places


def locate_client(whole: Shard, client: Shard) -> ClientSlice:
    """Where a client's users and items stand in the whole. Ids are sorted in every shard."""
    return ClientSlice(
        client, sorted_places(whole.user_ids, client.user_ids), sorted_places(whole.item_ids, client.item_ids)
    )


@dataclass(frozen=True)
class WholeTraining:
    """The best round's lists by client, and what training cost."""

    tops: dict[str, TopItems]
    validation: dict[str, float]
    best_round: int
    seconds: dict[str, float]


def train_whole(
    folder: Path, clients: Sequence[Shard], method: MethodSettings, rounds: int, seed: int, device: torch.device
) -> tuple[WholeTraining, list[ClientSlice]]:
    """As many rounds as the federation has, each with the clients' local epochs."""
    whole = read_shard(folder)
    views = [locate_client(whole, client) for client in clients]
    start = time.perf_counter()
    spectrum = cached_spectrum(whole, method.cutoff, None)
    spectrum_seconds = time.perf_counter() - start
    training = ItemTrainer(whole, spectrum, method, device)
    training.initialise(seed)
    strategy, best, spent = build_strategy("local", method), _better_round(training, views, 0, None), 0.0
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        training.moment = RoundContext(number, rounds, seed)
        strategy.fit_round(training, Parameters({}))
        spent += time.perf_counter() - began
        best = _better_round(training, views, number, best)
    total = time.perf_counter() - start  # the choice of where to start and every round's evaluation too
    return replace(best, seconds={"spectrum": spectrum_seconds, "training": spent, "total": total}), views


def _better_round(
    training: ItemTrainer, views: Sequence[ClientSlice], number: int, best: WholeTraining | None
) -> WholeTraining:
    """The better of this round and the best so far, by the client mean of the primary measure on validation items."""
    ranker = freeze(f"whole.{number}", training).ranker
    tops = {view.client: view.restrict_lists(ranker.top, training.shard.train.shape[1]) for view in views}
    validation = {}
    for client in views:
        users = validation_users(client.shard.train.shape[0], seed=0)
        validation[client.client] = on_validation(client.shard, tops[client.client], users).primary_value
    if best is not None and np.mean([*best.validation.values()]) >= np.mean([*validation.values()]):
        return best
    return WholeTraining(tops, validation, number, {})


def measure_on_test(trained: WholeTraining, views: Sequence[ClientSlice]) -> list[dict[str, Any]]:
    """Test figures of every client, read once."""
    figures = []
    for client in views:
        users, items = client.shard.train.shape
        measures = on_test(client.shard, trained.tops[client.client])
        figures.append(
            {
                "client": client.client,
                **measures.values,
                f"valid_{PRIMARY}": trained.validation[client.client],
                "test_users": measures.users,
                "best_round": trained.best_round,
                "users": users,
                "items": items,
                "bytes_up": 0,
                "bytes_down": 0,
            }
        )
    return figures
