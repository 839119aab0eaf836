"""Methods of the session tables, their candidate rates, and the evaluation of models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from client_service.data.prefixes import Prefixes
from client_service.data.sessions import SessionShard
from client_service.evaluation.session_ranking import measure_prefixes
from client_service.model_store.session_models import freeze_sessions
from client_service.models.sequence.srgnn import SRGNN
from client_service.training.session_trainer import MODELS, SessionTrainer
from client_service.training.training_state import load_named
from shared.method.parameters import Arrays, Float32, Parameters
from shared.method.settings import MethodSettings, ServerStepSettings, method_settings
from shared.strategies import build_strategy

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"strategy": "fedavg"},
    "fedprox": {"strategy": "fedprox"},
    "fedadam": {"strategy": "fedadam"},
    "fedyogi": {"strategy": "fedyogi"},
    "fedga": {"strategy": "fedga"},
}
ABLATION: dict[str, dict[str, Any]] = {
    "adam + DRA": {"strategy": "fedadam", "server_step.magnitudes": "computed"},
    "yogi + DRA": {"strategy": "fedyogi", "server_step.magnitudes": "computed"},
    "clip, no DRA": {"strategy": "fedga", "server_step.magnitudes": "off"},
    "ramp, no DRA": {"strategy": "fedga", "server_step.magnitudes": "off", "server_step.second_moment": "ramp"},
    "ramp": {"strategy": "fedga", "server_step.second_moment": "ramp"},
}


class Regime(NamedTuple):
    """Candidate rates of one optimiser of devices.

    alone: client rates where the server adopts the mean. clients, servers: rates where the server steps. tau: of the
    server; SGD's changes are far below the usual one.
    """

    alone: tuple[float, ...]
    clients: tuple[float, ...]
    servers: tuple[float, ...]
    tau: float


REGIMES = {
    "adam": Regime((0.01, 0.03, 0.1, 0.3), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1), 1e-3),
    "sgd": Regime((0.03, 0.1, 0.3, 1.0), (0.03, 0.1, 0.3), (0.003, 0.01, 0.03), 1e-5),
}


def build_method(items: int, changes: dict[str, Any]) -> tuple[str, MethodSettings]:
    """Returns a strategy's name and settings with these changes, for this many items."""
    values = {"model": "srgnn", "width": 64, "catalogue": items, "batch_size": 50, **changes}
    return values.pop("strategy"), method_settings(**values)


def list_rates(items: int, changes: dict[str, Any], optimiser: str) -> list[dict[str, float]]:
    """Lists client rates, with server rates where the strategy's server steps."""
    regime = REGIMES[optimiser]
    if build_strategy(*build_method(items, changes)).server == "none":
        return [{"learning_rate": client} for client in regime.alone]
    pairs, usual = itertools.product(regime.clients, regime.servers), ServerStepSettings().tau
    tau = {} if regime.tau == usual else {"server_step.tau": regime.tau}
    return [{"learning_rate": client, "server_step.rate": server, **tau} for client, server in pairs]


Values = dict[str, float]
Examples = Callable[[SessionShard], Prefixes]


def open_model(method: MethodSettings) -> SRGNN:
    """Creates a model over the whole catalogue, into which states are loaded."""
    return MODELS[method.model](method.catalogue, method.width)


def judge_state(model: SRGNN, shared: Arrays, examples: Prefixes) -> Values:
    """Evaluates parameters, with all items of the catalogue in the list."""
    load_named(model, Parameters(shared))

    @torch.no_grad()
    def score(some: Prefixes) -> Float32:
        clicks, lengths = map(torch.from_numpy, some.pad())
        scores: Float32 = model(clicks, lengths).numpy()
        return scores

    return dict(measure_prefixes(score, examples, len(model.item.table)).values)


def judge_silos(trainings: Sequence[SessionTrainer], choose: Examples) -> dict[str, Values]:
    """Evaluates each silo's model on its own examples and items.

    Returns means over examples, and over silos.
    """
    each = [_judge_silo(training, choose(training.shard)) for training in trainings]
    return average_silos(each, [len(choose(training.shard)) for training in trainings])


def average_silos(each: Sequence[Values], sizes: Sequence[int]) -> dict[str, Values]:
    """Averages the silos' measures over examples and over silos.

    sizes: examples of each.
    """
    by_example = {name: float(np.average([one[name] for one in each], weights=sizes)) for name in each[0]}
    return {"examples": by_example, "silos": {name: float(np.mean([one[name] for one in each])) for name in each[0]}}


def _judge_silo(training: SessionTrainer, examples: Prefixes) -> Values:
    served = freeze_sessions("", training)
    return dict(measure_prefixes(served.score, examples, len(training.shard.item_ids)).values)
