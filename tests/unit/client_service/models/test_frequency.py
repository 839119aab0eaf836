"""The encoder whose kernels are a function of the eigenvalue, with a preference of the client's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from client_service.data.interactions import Shard
from client_service.models.encoders.frequency import encode
from client_service.models.model import Model
from client_service.training.item_trainer import ItemTrainer
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import kernel_specification
from shared.strategies.fedssp import fedssp


def training(shard: Shard, kind: str, **changes: Any) -> ItemTrainer:
    method = MethodSettings(**({"width": 4, "layers": 2, "cutoff": 16, "negatives": 4} | changes))
    return ItemTrainer(shard, low_spectrum(shard.train, method.cutoff), method, torch.device("cpu"), kind=kind)


def frequency(shard: Shard, **changes: Any) -> tuple[ItemTrainer, Model]:
    client = training(shard, "frequency", **changes)
    return client, client.model


@torch.no_grad()
def all_scores(model: Model) -> np.ndarray:
    users, items = model.pooled()
    return model.head.score_all(users, items).numpy()


def test_an_eigenvalue_is_encoded_as_itself_and_sines_and_cosines_of_a_hundred_times_it() -> None:
    found = encode(np.array([0.0, 0.02]), 4)  # two frequencies: 1 and 1/100
    expected: list[list[float]] = [
        [0, 0, 0, 1, 1],
        [0.02, math.sin(2.0), math.sin(0.02), math.cos(2.0), math.cos(0.02)],
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_it_starts_at_kernels_of_one_and_with_lgcn_s_scores(planted: Shard) -> None:
    (_, model), plain = frequency(planted), training(planted, "lgcn").model
    kernels = model.encoder.response()
    assert kernels.shape == plain.encoder.response.kernels.shape and (kernels == 1.0).all()
    np.testing.assert_array_equal(all_scores(model), all_scores(plain))


def test_kernels_are_the_function_at_the_client_s_own_eigenvalues(planted: Shard) -> None:
    client, model = frequency(planted, width=2)
    zero, one = np.zeros((2, 3), dtype=np.float32), np.array([[1, 0, 0], [0, 0, 0]], dtype=np.float32)
    client.load(
        Parameters(
            {
                "kernel.hidden.weight": one,  # the first hidden number is tanh(lambda)
                "kernel.hidden.bias": zero[:, 0],
                "kernel.output.weight": np.array([[2, 0], [-1, 0]], dtype=np.float32),
                "kernel.output.bias": np.array([0, 0.5], dtype=np.float32),
            }
        )
    )
    bent = np.tanh(client.spectrum.eigenvalues)
    np.testing.assert_allclose(model.encoder.response().detach().numpy(), [1 + 2 * bent, 1.5 - bent], rtol=1e-5)
    first, second, third = (c.detach().numpy() for c in model.encoder.coefficients())
    np.testing.assert_allclose(second, (1 + 2 * bent)[:, None] * first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(third, (1.5 - bent)[:, None] * second, rtol=1e-4, atol=1e-6)


def test_the_kernel_mlp_is_what_the_strategy_declares_and_the_preference_is_private(planted: Shard) -> None:
    client, model = frequency(planted)
    shapes = {name: value.shape for name, value in client.arrays().items() if name.startswith("kernel.")}
    assert shapes == {spec.name: spec.shape for spec in kernel_specification(client.method)}
    private = {name for name, _ in model.named_parameters()} - set(client.arrays())
    assert private == {"embedding", "log_alpha", "preference"}  # and no kernel of its own beside the function


@pytest.mark.parametrize("width", [1, 3, 8])
def test_every_width_fits(planted: Shard, width: int) -> None:
    client, _ = frequency(planted, width=width)
    sent = fedssp(client.method).fit(client, Parameters(client.arrays()))
    assert {name: value.shape for name, value in sent.arrays.items()} == {
        spec.name: spec.shape for spec in kernel_specification(client.method)
    }


def test_the_preference_is_added_to_every_pooled_user_and_to_no_item(planted: Shard) -> None:
    _, model = frequency(planted)
    rows = torch.arange(3)
    found = []
    for shift in (0.0, 0.25):
        with torch.no_grad():
            model.head.preference.fill_(shift)
            left, right, _ = model.encoder.batch(rows, rows, rows, leave_one_out=True)
            users, every = model.pooled()
            users_of = (model.head.pool_users(left), users, model.head.pool_users(model.encoder.basket(rows)))
        found.append([pooled.embedding for pooled in (*users_of, model.head.pool_items(right), every)])
    for place, (before, after) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(after, before + (0.25 if place < 3 else 0.0))


def test_what_is_served_is_the_model_s_own_list_with_the_preference_in_it(planted: Shard) -> None:
    client, model = frequency(planted, learning_rate=0.05)
    fedssp(client.method).fit(client, Parameters(client.arrays()))
    assert (model.head.preference != 0.0).any() and (model.encoder.response() != 1.0).any()
    scores, ranker = all_scores(model), model.freeze()
    scores[planted.train.toarray() > 0] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    assert ranker.top(np.arange(40), planted.train, 5).tolist() == expected.tolist()
    assert model.fold_in(np.array([1, 2])).embedding.shape == (1, model.encoder.embedding.shape[1])
