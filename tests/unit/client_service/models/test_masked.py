"""The masked encoder: weights times masks wherever a score is made, LGCN's names for all that travels."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_service.data.interactions import Shard
from client_service.model_store.model_files import ModelHead, load_parameters, save_model
from client_service.models.encoders.masked import MaskedModel
from client_service.models.model import Model
from client_service.training.item_trainer import ItemTrainer
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import mlp_specification
from shared.strategies.fedpub import fedpub

WEIGHTS = ("pooling.hidden", "pooling.output", "predictive.hidden", "predictive.output")


def training(shard: Shard, kind: str, **changes: Any) -> ItemTrainer:
    method = MethodSettings(**({"width": 3, "layers": 2, "cutoff": 16, "negatives": 4} | changes))
    return ItemTrainer(shard, low_spectrum(shard.train, method.cutoff), method, torch.device("cpu"), kind=kind)


@torch.no_grad()
def all_scores(model: Model) -> np.ndarray:
    users, items = model.pooled()
    return model.head.score_all(users, items).numpy()


@pytest.mark.parametrize("start", ["exact", "random"])
def test_it_starts_as_the_encoder_without_masks(planted: Shard, start: str) -> None:
    masked, plain = training(planted, "masked", start=start).model, training(planted, "lgcn", start=start).model
    assert isinstance(masked, MaskedModel) and not isinstance(plain, MaskedModel)
    np.testing.assert_array_equal(all_scores(masked), all_scores(plain))


def test_only_lgcn_s_mlps_may_leave_and_every_weight_has_a_private_mask_of_its_shape(planted: Shard) -> None:
    client = training(planted, "masked")
    own = dict(client.model.named_parameters())
    assert {name: v.shape for name, v in client.arrays().items()} == {
        spec.name: spec.shape for spec in mlp_specification(client.method)
    }
    masks = {name: parameter for name, parameter in own.items() if name.startswith("mask.")}
    assert set(masks) == {f"mask.{name}.weight" for name in WEIGHTS}
    assert all(mask.shape == own[name.removeprefix("mask.")].shape for name, mask in masks.items())
    assert all((mask == 1.0).all() for mask in masks.values())
    assert set(own) - set(masks) - set(client.arrays()) == {"embedding", "kernels", "log_alpha"}


def test_scores_and_lists_are_those_of_an_encoder_whose_weights_are_multiplied_by_hand(planted: Shard) -> None:
    client, plain = training(planted, "masked", start="random"), training(planted, "lgcn", start="random")
    own, generator = dict(client.model.named_parameters()), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in WEIGHTS:
            mask = own[f"mask.{name}.weight"]
            mask.copy_(torch.rand(mask.shape, generator=generator) * 2.0)
    products = {
        name: value * own[f"mask.{name}"].detach().numpy() if f"mask.{name}" in own else value
        for name, value in client.arrays().items()
    }
    plain.load(Parameters(products))
    np.testing.assert_allclose(all_scores(client.model), all_scores(plain.model), atol=1e-6)
    unmasked = training(planted, "masked", start="random").model
    assert np.abs(all_scores(client.model) - all_scores(unmasked)).max() > 1e-3
    rows = np.arange(40)
    lists = [one.freeze().top(rows, planted.train, 5).tolist() for one in (client.model, plain.model)]
    assert lists[0] == lists[1]


def test_loading_takes_over_weights_and_leaves_the_masks(planted: Shard) -> None:
    client = training(planted, "masked")
    own = dict(client.model.named_parameters())
    with torch.no_grad():
        own["mask.pooling.hidden.weight"].fill_(0.5)
    client.load(Parameters({"pooling.hidden.weight": np.full((3, 9), 4.0, dtype=np.float32)}))
    assert (client.arrays()["pooling.hidden.weight"] == 4.0).all()
    assert torch.equal(client.model.head.pooling.hidden.weight, torch.full((3, 9), 2.0))


def test_fitting_moves_weights_and_masks_and_sends_the_weights_unmasked(planted: Shard) -> None:
    client = training(planted, "masked", mlp_learning_rate=1e-2)
    before = client.arrays()
    sent = fedpub(client.method).fit(client, Parameters(before))
    own = dict(client.model.named_parameters())
    assert all((own[f"mask.{name}.weight"] < 1.0).any() for name in WEIGHTS)  # L1 draws them to zero
    assert any((sent.arrays[name] != value).any() for name, value in before.items())
    assert all(np.array_equal(value, own[name].detach().numpy()) for name, value in sent.arrays.items())
    assert set(sent.arrays) == {spec.name for spec in mlp_specification(client.method)}


def test_a_copy_and_a_saved_model_keep_the_masks(planted: Shard, tmp_path: Path) -> None:
    client = training(planted, "masked", start="random", learning_rate=0.05)
    fedpub(client.method).fit(client, Parameters({}))
    held, before = copy.deepcopy(client.model).requires_grad_(False), all_scores(client.model)
    head = ModelHead(shard="s", run="run-1", round=1, method=client.method, start=None, values={})
    save_model(tmp_path, client.model, head)
    fedpub(client.method).fit(client, Parameters({}))
    assert np.abs(all_scores(client.model) - before).max() > 1e-3
    np.testing.assert_array_equal(all_scores(held), before)
    assert load_parameters(tmp_path, head.model_copy(update={"parameters": "model-run-1.1.safetensors"}), client.model)
    np.testing.assert_array_equal(all_scores(client.model), before)
