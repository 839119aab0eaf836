"""A model that begins in the common basis: one vector an item in all silos, and the filter on the sums of all silos."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.federation.best_model import BestModel
from client_service.federation.messages import RoundCosts
from client_service.model_store.model_files import load_head
from client_service.models.encoders import lgcn
from client_service.models.initial_filter import CommonSpectrum, Filter, build_start
from client_service.models.low_pass import LowPass
from client_service.models.model import ModelInputs
from client_service.runtime.interruption import NEVER
from client_service.serving.model_server import ModelServer
from client_service.sums.basis import CommonBasis
from client_service.sums.scorers import common_spectrum
from client_service.sums.storage import save_basis
from client_service.sums.subspace_iteration import fix_signs
from client_service.tasks.items import ITEMS, begin_training, rebuild_training
from client_service.tasks.task import RunContext
from client_service.training.filter_search import filter_scores
from client_service.training.item_trainer import ItemTrainer
from client_service.training.start_choice import COMMON_START
from shared.errors import SettingsError
from shared.method.graph import Float64, degree_power, degrees
from shared.method.settings import MethodSettings, method_settings
from shared.method.spectrum import low_spectrum

CATALOGUE = 60
METHOD = MethodSettings(width=4, layers=2, cutoff=12)
WITH_BASIS = {"basis.kind": "exact", "start": "common"}
CHOSEN = Filter(8, ridge=0.03, exponent=0.25)


def drawn(users: int, seed: int) -> sparse.csr_array:
    return sparse.csr_array((np.random.default_rng(seed).random((users, CATALOGUE)) < 0.2).astype(np.float64))


def summed(interactions: sparse.csr_array, kind: str) -> CommonBasis:
    """The basis of all users; exact: with user exponent 0, iterated: 1/4."""
    by_user, by_item = degrees(interactions)
    if kind == "exact":
        pairs = (interactions.T @ interactions).toarray().astype(np.float32)
        return CommonBasis("exact", 0.25, by_item.astype(np.int64), pairs=pairs)
    scaled = degree_power(by_user, -0.25)[:, None] * interactions.toarray() * degree_power(by_item, -0.25)
    _, singular, right = np.linalg.svd(scaled, full_matrices=False)
    vectors = fix_signs(right[:12].T).astype(np.float32)
    return CommonBasis("iterated", 0.25, by_item.astype(np.int64), vectors=vectors, values=singular[:12] ** 2)


class Silo:
    """Some of all users with the items that they have, in an order of its own."""

    def __init__(self, wide: sparse.csr_array, seed: int) -> None:
        had = np.flatnonzero(degrees(wide)[1])
        self.places = np.random.default_rng(seed).permutation(had)[: len(had) * 2 // 3]
        self.train = sparse.csr_array(wide[:, self.places])

    def spectrum(self, basis: CommonBasis, cutoff: int = 12) -> CommonSpectrum:
        return common_spectrum(basis, self.places, self.train, cutoff)

    def encoder(self, basis: CommonBasis) -> LowPass:
        spectrum = self.spectrum(basis)
        start = build_start(CHOSEN, spectrum, self.train)
        encoder = lgcn.build(ModelInputs(spectrum, self.train, start, self.places, METHOD)).encoder
        assert isinstance(encoder, LowPass)
        return encoder


@pytest.fixture
def silos() -> tuple[Silo, Silo]:
    return Silo(drawn(40, 2), 5), Silo(drawn(90, 3), 6)


@pytest.fixture(params=["exact", "iterated"])
def basis(request: pytest.FixtureRequest) -> CommonBasis:
    return summed(sparse.csr_array(sparse.vstack([drawn(40, 2), drawn(90, 3)])), request.param)


def common_items(silos: tuple[Silo, Silo]) -> tuple[np.ndarray, np.ndarray]:
    """Columns of the items that both have, in each."""
    _, first, second = np.intersect1d(silos[0].places, silos[1].places, return_indices=True)
    assert len(first) > 10
    return first, second


def test_an_item_begins_with_the_same_vector_in_every_silo_that_has_it(
    silos: tuple[Silo, Silo], basis: CommonBasis
) -> None:
    columns = common_items(silos)
    rows = [
        silo.encoder(basis).embedding.detach().numpy()[silo.train.shape[0] + own]
        for silo, own in zip(silos, columns, strict=True)
    ]
    assert np.array_equal(*rows) and np.abs(rows[0]).max() > 0.1
    shuffled = [rows[0], rows[1][:, np.roll(np.arange(rows[1].shape[1]), 1)]]
    assert np.abs(shuffled[0] - shuffled[1]).max() > 0.1, "columns in another order would be seen"
    alone = [low_spectrum(silo.train, 8).items[own] for silo, own in zip(silos, columns, strict=True)]
    assert np.abs(alone[0] - alone[1]).max() > 0.1, "the silos' own frequencies differ"


def expected_scores(silo: Silo, everybody: sparse.csr_array, basis: CommonBasis) -> Float64:
    """d_u^-1/4 x D^-1/4 V h V^T D^1/4 by a dense decomposition of all data."""
    by_user, by_item = degrees(everybody)
    weight = 0.0 if basis.kind == "exact" else 0.25
    scaled = degree_power(by_user, -weight)[:, None] * everybody.toarray() * degree_power(by_item, -0.25)
    singular, right = np.linalg.svd(scaled, full_matrices=False)[1:]
    vectors, share = right[:8].T, (singular[:8] / singular[0]) ** 2
    entered = silo.train.toarray() * degree_power(by_item, -0.25)[silo.places]
    low = (entered @ vectors[silo.places] * (share / (share + 0.03))) @ vectors[silo.places].T
    return degree_power(degrees(silo.train)[0], -0.25)[:, None] * low * degree_power(by_item, 0.25)[silo.places]


@torch.no_grad()
def test_scores_of_the_untrained_model_are_the_filter_on_all_silos_data(
    silos: tuple[Silo, Silo], basis: CommonBasis
) -> None:
    silo, everybody = silos[0], sparse.csr_array(sparse.vstack([drawn(40, 2), drawn(90, 3)]))
    expected = expected_scores(silo, everybody, basis)
    encoder = silo.encoder(basis)
    for layer in encoder.layers(torch.arange(len(encoder.embedding)), encoder.coefficients()):
        torch.testing.assert_close(layer, encoder.embedding, atol=1e-5, rtol=0)
    users, items = encoder.all_nodes()
    scores = (users.layers[-1] * users.scale[:, None]) @ (items.layers[-1] * items.scale[:, None]).T
    for found in (scores.numpy(), filter_scores(CHOSEN, silo.spectrum(basis), silo.train)(np.arange(40))):
        alpha = np.vdot(found, expected) / np.vdot(expected, expected)
        np.testing.assert_allclose(found, alpha * expected, atol=1e-5 * np.abs(found).max(), rtol=0)


@torch.no_grad()
def test_a_stranger_is_folded_in_like_a_user_with_that_basket(silos: tuple[Silo, Silo], basis: CommonBasis) -> None:
    silo = silos[1]
    encoder = silo.encoder(basis)
    users, _ = encoder.all_nodes()
    stranger = encoder.basket(torch.from_numpy(silo.train[[7]].indices.astype(np.int64)))
    torch.testing.assert_close(stranger.layers[-1][0], users.layers[-1][7], atol=1e-5, rtol=0)
    torch.testing.assert_close(stranger.scale[0], users.scale[7])


@torch.no_grad()
def test_a_pair_without_its_own_edge_is_scored_as_if_it_were_not_there(
    silos: tuple[Silo, Silo], basis: CommonBasis
) -> None:
    silo = silos[0]
    encoder = silo.encoder(basis)
    item = int(silo.train[[3]].indices[0])
    user, _ = encoder.nodes_without_edge(torch.tensor([3]), torch.tensor([item]), encoder.coefficients())
    rest = torch.from_numpy(np.setdiff1d(silo.train[[3]].indices, [item]).astype(np.int64))
    torch.testing.assert_close(user.layers[-1], encoder.basket(rest).layers[-1], atol=1e-5, rtol=0)
    torch.testing.assert_close(user.scale, encoder.basket(rest).scale)


def test_an_item_that_is_not_listed_begins_at_nothing(silos: tuple[Silo, Silo], basis: CommonBasis) -> None:
    silo = silos[0]
    silo.places = np.where(np.arange(len(silo.places)) < 5, -1, silo.places)
    spectrum = silo.spectrum(basis)
    assert not spectrum.items[:5].any() and spectrum.items[5:].any(axis=1).all()
    assert np.array_equal(spectrum.item_degrees[:5], degrees(silo.train)[1][:5])


def begun(shard: Shard, basis: CommonBasis, folder: Path, **changes: str) -> ItemTrainer:
    method = method_settings(width=4, layers=1, cutoff=12, negatives=4, **{**WITH_BASIS, **changes})
    return begin_training(
        RunContext("shop", "run-1", 0, method, folder, basis=basis), shard, torch.device("cpu"), NEVER
    )[0]


@pytest.fixture
def listed(planted: Shard) -> Shard:
    places = np.random.default_rng(1).permutation(CATALOGUE)[: planted.train.shape[1]].astype(np.int64)
    return replace(planted, places=places)


def test_the_setting_decides_where_training_begins(listed: Shard, basis: CommonBasis, tmp_path: Path) -> None:
    common, own = begun(listed, basis, tmp_path), begun(listed, basis, tmp_path, start="exact")
    assert common.start == COMMON_START and common.start != own.start, "each keeps a choice of its own"
    assert common.spectrum.eigenvalues.tolist() == own.spectrum.eigenvalues.tolist(), "rho is of the silo's own graph"
    assert common.recipe is not None and common.recipe.common_loudness == 1.0
    common.train()
    assert np.isfinite(common.figures.loss)


def test_a_kept_model_is_rebuilt_where_it_began(listed: Shard, basis: CommonBasis, tmp_path: Path) -> None:
    models = tmp_path / "model"
    method = method_settings(width=4, layers=1, cutoff=12, negatives=4, **WITH_BASIS)
    place = RunContext("shop", "run-1", 0, method, models, basis=basis)
    training, known = begin_training(place, listed, torch.device("cpu"), NEVER)
    BestModel(place, ITEMS, listed, ModelServer(), training, NEVER, known).judge(RoundCosts(round=0))
    head = load_head(models)
    assert head is not None and head.method.start == "common"
    save_basis(tmp_path / "basis", "run-0", basis)
    again = rebuild_training(head, listed, models, torch.device("cpu"))
    assert torch.equal(again.model.encoder.embedding, training.model.encoder.embedding)
    assert again.recipe == training.recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "common"}, "a kind other than off with start = common"),
        ({**WITH_BASIS, "signal": "trained"}, "signal = eigenvalues with start = common"),
    ],
)
def test_settings_that_a_common_start_cannot_bear_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=f"basis: .*expected {message}"):
        method_settings(**changes)
