"""A state or a silo's model -> HR@k and MRR@k on validation or test examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from client_service.data.sessions import Prefixes, SessionShard
from client_service.evaluation.session_metrics import measure_prefixes
from client_service.models.sequence.srgnn import SRGNN
from client_service.serving.next_items import freeze_sessions
from client_service.training.session_trainer import MODELS, SessionTrainer
from client_service.training.training_state import load_named
from shared.method.parameters import Arrays, Float32, Parameters
from shared.method.settings import MethodSettings

Values = dict[str, float]
Examples = Callable[[SessionShard], Prefixes]


def open_model(method: MethodSettings) -> SRGNN:
    """A model over the whole catalogue, into which states are loaded."""
    return MODELS[method.model](method.catalogue, method.width)


def judge_state(model: SRGNN, shared: Arrays, examples: Prefixes) -> Values:
    """Measures of these parameters, all items of the catalogue in the list."""
    load_named(model, Parameters(shared))

    @torch.no_grad()
    def score(some: Prefixes) -> Float32:
        clicks, lengths = map(torch.from_numpy, some.pad())
        scores: Float32 = model(clicks, lengths).numpy()
        return scores

    return dict(measure_prefixes(score, examples, len(model.item.table)).values)


def judge_silos(trainings: Sequence[SessionTrainer], choose: Examples) -> dict[str, Values]:
    """Each silo's model on its own examples, its own items in the list: means over examples, and over silos."""
    each = [_judge_silo(training, choose(training.shard)) for training in trainings]
    return average_silos(each, [len(choose(training.shard)) for training in trainings])


def average_silos(each: Sequence[Values], sizes: Sequence[int]) -> dict[str, Values]:
    """Measures of silos -> their means over examples and over silos. sizes: examples of each."""
    by_example = {name: float(np.average([one[name] for one in each], weights=sizes)) for name in each[0]}
    return {"examples": by_example, "silos": {name: float(np.mean([one[name] for one in each])) for name in each[0]}}


def _judge_silo(training: SessionTrainer, examples: Prefixes) -> Values:
    served = freeze_sessions("", training)
    return dict(measure_prefixes(served.score, examples, len(training.shard.item_ids)).values)
