"""Steps 5, 6 and 8: the margin (Eq. 8), the refined margin (Eq. 15) and the mean margin of a client (Eq. 10)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import sparse

import client_service.training.margins
from client_service.data.interactions import Shard
from client_service.training.item_trainer import ItemTrainer
from client_service.training.losses import margin, refined_margin
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification

pytestmark = pytest.mark.usefixtures("double")

ZERO = torch.zeros(1)  # tanh 0 = 0, so that R = pi / 2 and pi - R = pi / 2


def one(value: torch.Tensor) -> float:
    return float(value[0])


def test_a_small_margin_is_gamma_xi() -> None:
    # gamma xi = .2 * 1.5 = .3 < pi / 2.
    assert one(margin(torch.tensor([1.5]), ZERO, 0.2)) == pytest.approx(0.3)


def test_a_large_margin_ends_where_the_angle_reaches_pi() -> None:
    # tanh f = -.5: R = 2 pi / 3, and pi - R = pi / 3 < gamma xi = 3.
    score = torch.atanh(torch.tensor([-0.5]))
    assert one(margin(torch.tensor([3.0]), score, 1.0)) == pytest.approx(math.pi / 3)


def test_a_margin_has_no_gradient() -> None:
    score = torch.tensor([-0.4], requires_grad=True)
    local = margin(torch.tensor([3.0]), score, 1.0)
    assert not local.requires_grad
    assert not refined_margin(0.1, local, score, 0.25).requires_grad


def test_the_refined_margin_mixes_the_aggregators_value_with_the_local_one() -> None:
    # .25 * 1.2 + .75 * .4 = .3 + .3 = .6 < pi / 2.
    assert one(refined_margin(1.2, torch.tensor([0.4]), ZERO, 0.25)) == pytest.approx(0.6)


def test_the_refined_margin_ends_where_the_angle_reaches_pi() -> None:
    # .5 * 3 + .5 * 1.5 = 2.25 > pi / 2; the paper would use 2.25.
    assert one(refined_margin(3.0, torch.tensor([1.5]), ZERO, 0.5)) == pytest.approx(math.pi / 2)


def test_without_a_value_from_the_aggregator_the_local_margin_stands_alone() -> None:
    assert one(refined_margin(None, torch.tensor([0.4]), ZERO, 0.25)) == 0.4


@pytest.fixture
def client(shard_of: Callable[[sparse.csr_array], Shard]) -> ItemTrainer:
    """Three users with degrees 1, 2 and 4, four items with 1 to 3; MLPs that are not zero."""
    graph = sparse.csr_array([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    method = MethodSettings(width=3, layers=1, cutoff=2, margin_strength=0.9)
    found = ItemTrainer(shard_of(graph), low_spectrum(graph, 2), method, torch.device("cpu"))
    found.load(Parameters(initial_parameters(mlp_specification(method), 3, exact=False)))
    return found


def table_margin(client: ItemTrainer, user: int, item: int) -> float:
    """Eq. 8 of one pair from the two vectors themselves, in plain Python."""
    model, tables = client.model, client.tables
    u = tables.user_table[tables.user_bucket[user]].tolist()
    v = tables.item_table[tables.item_bucket[item]].tolist()
    xi = math.acos(sum(a * b for a, b in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v))
    row = torch.tensor([item])
    f = model.scores(torch.tensor([user]), row, row, leave_one_out=False)[0].item()
    return min(0.9 * xi, math.pi - math.acos(math.tanh(f)))


def test_the_mean_margin_is_the_mean_over_every_user_and_item(client: ItemTrainer) -> None:
    margins = [table_margin(client, user, item) for user in range(3) for item in range(4)]
    assert max(margins) - min(margins) > 0.5
    assert client.measure("mean_margin")[0] == pytest.approx(sum(margins) / 12, abs=1e-9)


def test_users_are_taken_in_blocks_without_losing_one(client: ItemTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = client.measure("mean_margin")[0]
    monkeypatch.setattr(client_service.training.margins, "BLOCK_PAIRS", 2)
    assert client.measure("mean_margin")[0] == pytest.approx(whole, abs=1e-12)


def test_a_large_shard_gives_the_mean_over_random_pairs(client: ItemTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = client.measure("mean_margin")[0]
    monkeypatch.setattr(client_service.training.margins, "EXACT_PAIRS", 11)  # one less than the pairs there are
    monkeypatch.setattr(client_service.training.margins, "SAMPLED_PAIRS", 100_000)
    sampled = client.measure("mean_margin")[0]
    # A margin lies in [0, pi]: the mean of 100,000 has a deviation of at most (pi / 2) / sqrt(100,000) = .005.
    assert sampled != exact and sampled == pytest.approx(exact, abs=0.02)
    assert client.measure("mean_margin")[0] == sampled
    client.context = RoundContext(round=2, rounds=9, seed=0)
    assert client.measure("mean_margin")[0] != sampled


def test_without_a_margin_its_mean_is_zero(shard_of: Callable[[sparse.csr_array], Shard]) -> None:
    graph = sparse.csr_array([[1.0, 1, 0], [0, 1, 1]])
    method = MethodSettings(width=2, layers=1, cutoff=2, margin_strength=0.0)
    client = ItemTrainer(shard_of(graph), low_spectrum(graph, 2), method, torch.device("cpu"))
    assert client.measure("mean_margin")[0] == 0.0
