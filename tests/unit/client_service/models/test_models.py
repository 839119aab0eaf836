"""Every model of the registry: its names, what clients exchange of it, that it freezes, folds in and learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.data.interactions import Shard
from client_service.models import encoders
from client_service.models.model import Model
from client_service.runtime.interruption import NEVER
from client_service.training.item_trainer import ItemTrainer
from client_service.training.start_choice import Choice, build_start_model
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import EXCHANGES, ITEM_TABLE
from shared.strategies import STRATEGIES

METHOD = MethodSettings(width=8, layers=2, cutoff=8, catalogue=40, batch_size=32, negatives=16, learning_rate=0.02)


@pytest.fixture
def listed(planted: Shard) -> Shard:
    return replace(planted, places=np.arange(40))


def built(shard: Shard, name: str) -> Model:
    return build_start_model(shard, low_spectrum(shard.train, 8), METHOD, name, Choice(), NEVER).model


OF_ITEMS = sorted(name for name, tensors in EXCHANGES.items() if tensors.task == "items")


@pytest.mark.parametrize("name", OF_ITEMS)
def test_a_model_has_every_tensor_that_is_exchanged_of_it_and_no_two_of_a_name(listed: Shard, name: str) -> None:
    named = [(key, tuple(parameter.shape)) for key, parameter in built(listed, name).named_parameters()]
    own = dict(named)
    assert len(own) == len(named) and "embedding" in own
    exchanged = {tensor.name: tensor.shape for tensor in EXCHANGES[name].tensors(METHOD)}
    assert exchanged.items() <= own.items()


@pytest.mark.parametrize("name", OF_ITEMS)
def test_a_model_at_rest_scores_as_it_trains_and_folds_a_basket_in(listed: Shard, name: str) -> None:
    model, users = built(listed, name), torch.arange(40)
    for leave_one_out in (False,) if EXCHANGES[name].starts_at_filter else (True, False):  # the filter leaves them out
        positive, scores = model.scores(users, users, users, leave_one_out=leave_one_out)
        torch.testing.assert_close(positive, scores.diagonal(), atol=1e-5, rtol=1e-4)
    ranker = model.freeze()
    ranked, values = ranker.top_k_with_scores(ranker.users, np.zeros((40, 40), dtype=bool), 5)
    np.testing.assert_allclose(values, np.take_along_axis(scores.detach().numpy(), ranked, 1), atol=1e-4)
    stranger, _ = ranker.top_k_with_scores(model.fold_in(np.array([1, 2])), np.zeros((1, 40), dtype=bool), 5)
    assert stranger.shape == (1, 5) and len(set(stranger[0])) == 5


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedper"])
def test_fedavg_and_its_kin_exchange_the_item_table_of_a_model_that_has_one(listed: Shard, strategy: str) -> None:
    method = METHOD.model_copy(update={"model": "mf", "loss": "bpr"})
    algorithm = STRATEGIES[strategy](method)
    client = ItemTrainer(listed, low_spectrum(listed.train, 8), method, torch.device("cpu"), kind=algorithm.model)
    received = Parameters(client.arrays())
    for number in range(1, 21):
        client.context = RoundContext(number, 20, 0)
        received = algorithm.fit(client, received)
    assert set(received.arrays) == {tensor.name for tensor in algorithm.tensors(method)} == {ITEM_TABLE}
    ranked = client.model.freeze().top(np.arange(40), listed.train, 4)  # four items of the own ten are left
    assert (ranked // 10 == np.arange(40)[:, None] // 10).mean() > 0.6  # by chance: 4 of 34


def test_an_unknown_model_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(SettingsError, match=r"model: .*expected one of lgcn, .*, got 'lgnc'"):
        method_settings(model="lgnc")


def test_each_model_has_a_file_and_each_file_is_a_model() -> None:
    files = {path.stem for path in Path(encoders.__path__[0]).glob("*.py")} - {"__init__"}
    assert files == set(OF_ITEMS)


def test_lpsfed_is_refused_for_a_model_without_mlps() -> None:
    with pytest.raises(SettingsError, match="model: expected an encoder beneath both MLPs"):
        STRATEGIES["lpsfed"](METHOD.model_copy(update={"model": "mf"}))
