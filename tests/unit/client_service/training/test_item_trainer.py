"""The verbs of a client: load, arrays, measure. Training itself is in test_train.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import client_service.training.start_choice
from client_service.data.interactions import Shard
from client_service.models.initial_filter import Filter
from client_service.training.client_measures import comparable_kernels
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext
from shared.method.divergence import kernel, round_divergence
from shared.method.parameters import Float32, Parameters, digest_arrays
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification
from shared.strategies import STRATEGIES
from shared.strategies.agreement import find_task

CPU = torch.device("cpu")
UNIFORM = np.full(12, 1 / 12)


def client_of(shard: Shard, **changes: Any) -> ItemTrainer:
    method = MethodSettings(**({"width": 3, "layers": 1, "cutoff": 16, "negatives": 4} | changes))
    return ItemTrainer(shard, low_spectrum(shard.train, method.cutoff), method, CPU)


@pytest.fixture
def client(planted: Shard) -> ItemTrainer:
    return client_of(planted)


def copied(client: ItemTrainer) -> dict[str, Float32]:
    return {name: p.detach().numpy().copy() for name, p in client.model.named_parameters()}


def test_its_arrays_are_exactly_both_mlps_and_the_rest_is_private(client: ItemTrainer) -> None:
    expected = {spec.name: spec.shape for spec in mlp_specification(client.method)}
    assert {name: value.shape for name, value in client.arrays().items()} == expected
    assert all(value.dtype == np.float32 for value in client.arrays().values())
    assert set(copied(client)) - set(expected) == {"embedding", "kernels", "log_alpha"}


USUAL = MethodSettings()
OF_ITEMS = [name for name, build in STRATEGIES.items() if find_task(build(USUAL), USUAL) == "items"]


@pytest.mark.parametrize("name", OF_ITEMS)
def test_every_strategy_declares_only_what_the_client_has_and_none_of_its_private_parameters(
    planted: Shard, name: str
) -> None:
    method = MethodSettings(width=3, layers=1, cutoff=16, catalogue=40)
    strategy, listed = STRATEGIES[name](method), replace(planted, places=np.arange(40))
    client = ItemTrainer(listed, low_spectrum(planted.train, 16), method, CPU, kind=strategy.model)
    shapes = {name: value.shape for name, value in client.arrays().items()}
    declared = {spec.name: spec.shape for spec in strategy.declaration(method).tensors}
    assert declared.items() <= shapes.items()
    private = set(copied(client)) - set(shapes)
    assert private and not any(strategy.shared(own) for own in private)


def test_arrays_are_copies_that_later_training_does_not_move(client: ItemTrainer) -> None:
    before = client.arrays()
    kept = {name: value.copy() for name, value in before.items()}
    client.train()
    assert all(np.array_equal(before[name], kept[name]) for name in kept)
    assert any(not np.array_equal(client.arrays()[name], kept[name]) for name in kept)


def test_loading_overwrites_what_was_named_and_nothing_else(client: ItemTrainer) -> None:
    before = copied(client)
    client.load(Parameters({"pooling.output.bias": np.array([1.0, 2.0, 3.0], dtype=np.float32)}))
    after = copied(client)
    assert after["pooling.output.bias"].tolist() == [1.0, 2.0, 3.0]
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {"pooling.output.bias"}


def test_what_was_loaded_comes_back_as_arrays_and_is_not_shared_memory(client: ItemTrainer) -> None:
    received = initial_parameters(mlp_specification(client.method), 4, exact=False)
    kept = {name: value.copy() for name, value in received.items()}
    client.load(Parameters(received))
    assert all(np.array_equal(client.arrays()[name], value) for name, value in kept.items())
    client.train()
    assert all(np.array_equal(received[name], value) for name, value in kept.items())


def test_without_an_anchor_there_is_no_divergence(client: ItemTrainer) -> None:
    assert client.measure("divergence") == ()


def test_with_too_few_frequencies_there_is_no_divergence(planted: Shard) -> None:
    # Four communities are four zeros: of eleven frequencies seven are left.
    client = client_of(planted, cutoff=11)
    client.context = RoundContext(1, 1, 0, UNIFORM)
    assert client.measure("divergence") == ()


def test_divergence_is_the_relative_entropy_from_the_anchor_to_the_own_eigenvalues(client: ItemTrainer) -> None:
    client.context = RoundContext(1, 1, 0, UNIFORM)
    own = sorted(float(value) for value in client.spectrum.eigenvalues if value > 1e-9)
    assert len(own) == 12
    expected = sum(1 / 12 * math.log(1 / 12 / (value / sum(own))) for value in own)
    assert client.measure("divergence")[0] == round_divergence(expected) > 0.0


def test_rho_leaves_with_ten_binary_digits_and_not_with_all_of_them(client: ItemTrainer) -> None:
    """The paper's rho is exact; ours is off by .05 % of itself at most, and nothing finer is told."""
    for rho in (0.0, 3.4e-5, 0.1234567, 1.0, 25.6):
        rounded = round_divergence(rho)
        assert abs(rounded - rho) <= rho / 2**10 and (rho == 0.0 or math.frexp(rounded)[0] * 2**10 % 1 == 0.0)
    client.context = RoundContext(1, 1, 0, UNIFORM)
    (rho,) = client.measure("divergence")
    assert round_divergence(rho) == rho


def test_a_client_whose_spectrum_is_the_anchors_is_at_distance_zero(client: ItemTrainer) -> None:
    client.context = RoundContext(1, 1, 0, kernel(client.spectrum.eigenvalues))
    assert client.measure("divergence") == (0.0,)


def test_what_the_divergence_compares_can_be_looked_at(client: ItemTrainer) -> None:
    assert comparable_kernels(client) is None
    client.context = RoundContext(1, 1, 0, UNIFORM)
    compared = comparable_kernels(client)
    assert compared is not None
    anchor, own = compared
    assert anchor.tolist() == pytest.approx([1 / 12] * 12) and own.tolist() == sorted(own.tolist())
    assert round_divergence(float(np.sum(anchor * np.log(anchor / own)))) == client.measure("divergence")[0]


def test_trained_kernels_move_the_divergence_only_where_the_signal_says_so(planted: Shard) -> None:
    for signal, moves in (("eigenvalues", False), ("trained", True)):
        client = client_of(planted, signal=signal)
        client.context = RoundContext(1, 1, 0, UNIFORM)
        before = client.measure("divergence")
        with torch.no_grad():
            client.model.encoder.response.kernels[-1].copy_(torch.linspace(0.5, 2.0, 16))
        assert (client.measure("divergence") != before) == moves


def test_at_the_start_both_signals_are_the_same(planted: Shard) -> None:
    found = []
    for signal in ("eigenvalues", "trained"):
        client = client_of(planted, signal=signal)
        client.context = RoundContext(1, 1, 0, UNIFORM)
        found.append(client.measure("divergence")[0])
    assert found[0] == pytest.approx(found[1], abs=1e-12)


def test_the_mean_margin_is_one_plain_number_between_zero_and_pi(client: ItemTrainer) -> None:
    assert type(client.measure("mean_margin")[0]) is float and 0.0 < client.measure("mean_margin")[0] < math.pi


def test_an_exact_start_is_at_the_filter_that_validation_prefers_unless_one_is_given(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, spectrum = MethodSettings(width=3, layers=1, cutoff=16), low_spectrum(planted.train, 16)
    chosen = client_service.training.start_choice.best_filter(planted, spectrum).choice
    assert ItemTrainer(planted, spectrum, method, CPU).start == chosen
    monkeypatch.setattr(client_service.training.start_choice, "best_filter", None)  # calling it would now fail
    given = ItemTrainer(planted, spectrum, method, CPU, Filter(4, 1.0, 0.1))
    assert given.start == Filter(4, 1.0, 0.1) and given.model.head.residual


def test_a_random_start_asks_for_no_filter(planted: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_service.training.start_choice, "best_filter", None)
    client = client_of(planted, start="random")
    assert client.start is None and not client.model.head.residual


def test_a_client_that_shares_nothing_begins_where_the_others_do(planted: Shard) -> None:
    method = MethodSettings(width=4, layers=1, cutoff=8)
    client = ItemTrainer(planted, low_spectrum(planted.train, 8), method, torch.device("cpu"))
    client.initialise(seed=3)
    expected = initial_parameters(mlp_specification(method), 3, exact=True)
    assert digest_arrays(client.arrays()) == digest_arrays(expected)
    assert not client.arrays()["predictive.output.weight"].any()  # at the filter, and nowhere else
