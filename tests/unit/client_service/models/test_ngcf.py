"""NGCF: its convolution by hand, one answer for training and ranking, and every strategy of the MLPs runs on it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from client_service.data.interactions import Shard
from client_service.models.encoders.ngcf import NGCF, SLOPE
from client_service.models.whole_graph import Propagation, symmetric
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.graph import normalise
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import mlp_specification
from shared.strategies import STRATEGIES

METHOD = MethodSettings(
    model="ngcf",
    start="random",
    width=8,
    layers=2,
    cutoff=8,
    batch_size=64,
    learning_rate=0.02,
    mlp_learning_rate=5e-3,
)
UNIFORM = np.full(8, 1 / 8)


@pytest.fixture
def client(planted: Shard) -> ItemTrainer:
    found = ItemTrainer(planted, low_spectrum(planted.train, 8), METHOD, torch.device("cpu"))
    found.context = RoundContext(1, 15, 0, UNIFORM)
    return found


def encoder(client: ItemTrainer) -> NGCF:
    assert isinstance(client.model.encoder, NGCF)
    return client.model.encoder


def test_a_layer_is_the_published_convolution(client: ItemTrainer) -> None:
    model = encoder(client)
    a = symmetric(normalise(client.shard.train)).toarray()
    z = model.embedding.detach().double().numpy()
    for layer, w1, w2 in zip(model.layers()[1:], model.on_sum, model.on_product, strict=True):
        one, two = w1.detach().double().numpy(), w2.detach().double().numpy()
        z = (a + np.eye(80)) @ z @ one + ((a @ z) * z) @ two
        z = np.where(z > 0, z, SLOPE * z)
        np.testing.assert_allclose(layer.detach().numpy(), z, atol=1e-5)


def test_the_gradient_of_a_product_is_that_of_the_dense_product(planted: Shard) -> None:
    weights = normalise(planted.train)
    rows = torch.randn(80, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    dense = torch.tensor(symmetric(weights).toarray(), dtype=torch.float32)
    torch.tanh(dense @ rows).sum().backward()  # type: ignore[no-untyped-call]
    expected, rows.grad = rows.grad, None
    torch.tanh(Propagation(weights)(rows)).sum().backward()  # type: ignore[no-untyped-call]
    assert expected is not None and rows.grad is not None
    torch.testing.assert_close(rows.grad, expected)


def test_both_mlps_are_shared_and_the_rest_is_private(client: ItemTrainer) -> None:
    assert set(client.arrays()) == {spec.name for spec in mlp_specification(METHOD)}
    private = {name for name, _ in client.model.named_parameters()} - set(client.arrays())
    assert private == {"embedding", "on_sum", "on_product"}


@pytest.mark.parametrize("name", ["lpsfed", "fedavg", "local"])
def test_the_strategies_of_the_mlps_learn_the_communities_with_it(client: ItemTrainer, name: str) -> None:
    strategy, received = STRATEGIES[name](METHOD), Parameters(client.arrays())
    for number in range(1, 16):
        client.context = RoundContext(number, 15, 0, UNIFORM)
        sent = strategy.fit(client, received)
    assert set(sent.scalars) == set(strategy.scalars) - {"rho"}  # too short a spectrum to be compared
    assert all(math.isfinite(value) for value in sent.scalars.values())
    ranked = client.model.freeze().top(np.arange(40), client.shard.train, 4)
    assert (ranked // 10 == np.arange(40)[:, None] // 10).mean() > 0.6  # by chance: 4 of 34


def test_a_basket_is_convolved_with_its_items(client: ItemTrainer) -> None:
    model = client.model
    basket = np.flatnonzero(client.shard.train.toarray()[3])
    with torch.no_grad():  # somebody whose own row is the mean of the items' gets that user's very layers
        model.encoder.embedding[3] = model.encoder.embedding[40 + torch.from_numpy(basket)].mean(0)
    expected = model.freeze().users[np.array([3])]
    np.testing.assert_allclose(model.fold_in(basket).narrow, expected.narrow, atol=1e-5)


def test_a_signal_that_needs_kernels_is_refused(planted: Shard) -> None:
    method = METHOD.model_copy(update={"signal": "trained"})
    with pytest.raises(SettingsError, match="signal"):
        ItemTrainer(planted, low_spectrum(planted.train, 8), method, torch.device("cpu"))
