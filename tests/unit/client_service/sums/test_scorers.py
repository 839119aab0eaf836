"""What a silo scores with from the sums of all silos: the formulas on the pooled data, and the choice among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.ranking import measure_test, rank_by_scores
from client_service.federation.best_model import BestModel
from client_service.federation.messages import RoundCosts
from client_service.model_store.model_files import freeze, load_head
from client_service.models.closed_form.ease import EASE, UserWeights, definite_ease, ease, ease_scores, ease_weights
from client_service.models.score_fusion import standard_scores
from client_service.runtime.interruption import NEVER
from client_service.serving.ranking import ListRequest
from client_service.sums.basis import CommonBasis
from client_service.sums.scorers import common_scorers, fill_hidden, shared_pairs
from client_service.sums.statistics import measure_covered_share
from client_service.sums.storage import save_basis
from client_service.tasks.items import ITEMS, begin_training, rebuild_training
from client_service.tasks.task import RunContext
from client_service.training.start_choice import Choice, load_choice, save_choice
from shared.errors import DataError
from shared.method.graph import degrees
from shared.method.settings import MethodSettings
from tests.support.compiled import TrainedRecommender

ITEMS_OF_ALL, OWN = 60, 40
SMALL = MethodSettings(width=4, layers=1, cutoff=12, negatives=4)


def drawn(users: int, items: int, share: float, seed: int) -> sparse.csr_array:
    return sparse.csr_array((np.random.default_rng(seed).random((users, items)) < share).astype(np.float64))


def exact(interactions: sparse.csr_array) -> CommonBasis:
    pairs = (interactions.T @ interactions).toarray().astype(np.float32)
    return CommonBasis("exact", 0.25, np.diag(pairs).astype(np.int64), pairs=pairs)


def iterated(interactions: sparse.csr_array, rank: int) -> CommonBasis:
    by_user, by_item = degrees(interactions)
    scaled = by_user[:, None] ** -0.25 * interactions.toarray() * np.maximum(by_item, 1) ** -0.25
    _, singular, right = np.linalg.svd(scaled, full_matrices=False)
    vectors = right[:rank].T.astype(np.float32)
    return CommonBasis("iterated", 0.25, by_item.astype(np.int64), vectors=vectors, values=singular[:rank] ** 2)


@pytest.fixture
def shared(planted: Shard) -> tuple[Shard, CommonBasis]:
    """A silo with 40 of 60 items, and the sums of it and of another one with all of them."""
    places = np.random.default_rng(1).permutation(ITEMS_OF_ALL)[:OWN].astype(np.int64)
    own = planted.train.toarray()
    wide = np.zeros((len(own), ITEMS_OF_ALL))
    wide[:, places] = own
    everybody = np.concatenate([wide, drawn(90, ITEMS_OF_ALL, 0.2, 2).toarray()])
    return replace(planted, places=places), exact(sparse.csr_array(everybody))


def test_ease_of_the_sums_gives_the_very_lists_of_ease_on_all_data(shared: tuple[Shard, CommonBasis]) -> None:
    shard, basis = shared
    assert shard.places is not None
    wide = np.zeros((shard.train.shape[0], ITEMS_OF_ALL))
    wide[:, shard.places] = shard.train.toarray()
    everybody = np.concatenate([wide, drawn(90, ITEMS_OF_ALL, 0.2, 2).toarray()])
    pooled = ease_weights(sparse.csr_array(everybody.astype(np.float32)), EASE.usual)
    scores = (wide @ pooled)[:, shard.places]
    theirs, *_ = common_scorers(basis, shard.places, shard.train)
    found = standard_scores(theirs, shard.train.astype(np.float32))
    np.testing.assert_allclose(found, scores, atol=1e-6)
    users = np.arange(shard.train.shape[0])
    lists = [rank_by_scores(lambda rows, s=s: s[rows])(users, shard.train, 10) for s in (found, scores)]
    assert np.array_equal(*lists)


def test_sums_of_a_shared_part_stay_definite_and_a_block_in_another_measure_does_not() -> None:
    own, others = drawn(30, 20, 0.5, 3), drawn(200, 20, 0.5, 4).toarray()
    others[:, 12:] = 0.0  # the last eight items are not listed
    places = np.where(np.arange(20) < 12, np.arange(20), -1)
    pairs = exact(sparse.csr_array(np.concatenate([own.toarray(), others])[:, :12])).pairs
    assert pairs is not None
    for weight in (0.0, 0.3, 1.0):
        matrix = shared_pairs(pairs, places, own, weight).astype(np.float64)
        assert np.linalg.eigvalsh(matrix).min() > -1e-4
    replaced = shared_pairs(pairs, places, own).astype(np.float64)
    replaced[:12, :12] = pairs / 23.0  # the mean over groups of ten users
    assert np.linalg.eigvalsh(replaced).min() < -1.0


def test_items_that_are_not_listed_are_scored_by_the_silo_s_own_pairs(shared: tuple[Shard, CommonBasis]) -> None:
    shard, basis = shared
    assert shard.places is not None
    nothing = common_scorers(basis, np.full(OWN, -1), shard.train)[0]
    own = ease_weights(shard.train.astype(np.float32), EASE.usual)
    np.testing.assert_allclose(nothing.weights, own, atol=1e-6)  # type: ignore[attr-defined]
    partly = np.where(np.arange(OWN) < 30, shard.places, -1)
    for scorer in common_scorers(basis, partly, shard.train):
        assert np.isfinite(standard_scores(scorer, shard.train.astype(np.float32))).all()


def test_hidden_pairs_are_filled_with_what_the_degrees_let_expect() -> None:
    pairs = exact(drawn(200, 30, 0.1, 7)).pairs
    assert pairs is not None
    assert np.array_equal(fill_hidden(pairs), pairs), "a pair that is seen once says that nothing is hidden"
    hidden = np.where((pairs < 3) & ~np.eye(30, dtype=bool), np.float32(0.0), pairs)
    filled = fill_hidden(hidden)
    assert np.array_equal(filled[hidden > 0], hidden[hidden > 0]), "what was summed stays"
    assert filled[hidden == 0].max() <= 2.0
    assert np.abs(filled - pairs).sum() < np.abs(hidden - pairs).sum()


def test_sums_made_indefinite_by_hiding_rare_pairs_still_give_ease() -> None:
    hidden = np.diag(np.ones(12, np.float32))
    hidden[0, 1:] = hidden[1:, 0] = 400.0
    assert np.isfinite(definite_ease(hidden)).all()


def test_sums_that_no_ridge_makes_definite_give_no_ease() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="definite"):
        definite_ease(np.diag(np.array([1.0, -1e30, 1.0], np.float32)))


def test_sums_tell_of_an_item_what_is_handed_out_beyond_the_silo_s_own_pairs(planted: Shard) -> None:
    """Of the last ten items only this silo has users, and of the ten before them no pair of others is handed out."""
    shard = replace(planted, places=np.arange(OWN))
    others = drawn(90, OWN, 0.5, 3).toarray()
    others[:, 30:] = 0.0
    counted = exact(sparse.csr_array(np.concatenate([planted.train.toarray(), others])))
    own = exact(planted.train).pairs
    assert counted.pairs is not None and own is not None
    counted.pairs[20:30] = counted.pairs[:, 20:30] = 0.0
    counted.pairs[20:30, 20:30] = own[20:30, 20:30]  # as it is where nobody else has two of them
    np.fill_diagonal(counted.pairs, counted.degrees)
    per_item = np.bincount(shard.train.indices, minlength=OWN)
    assert measure_covered_share(counted, shard) == pytest.approx(per_item[:20].sum() / per_item.sum())
    unlisted = replace(shard, places=np.where(np.arange(OWN) < 10, np.arange(OWN), -1))
    assert measure_covered_share(counted, unlisted) == pytest.approx(per_item[:10].sum() / per_item.sum())
    wide = iterated(sparse.csr_array(np.concatenate([planted.train.toarray(), others])), 16)
    assert measure_covered_share(wide, shard) == pytest.approx(per_item[:30].sum() / per_item.sum())
    noised = replace(wide, exponent=0.0)
    assert measure_covered_share(noised, shard) == 1.0, "noise hides what others have"


@pytest.mark.parametrize("seed", range(4))
def test_a_silo_is_served_like_alone_where_the_sums_hide_its_pairs(planted: Shard, seed: int, tmp_path: Path) -> None:
    """Of the others only three items' pairs are handed out, from which all that is told of the rest is how often."""
    generator = np.random.default_rng(seed)
    train = sparse.csr_array(planted.train * (generator.random(planted.train.shape) < 0.7))
    judged = (np.arange(40) < 4).astype(float)
    valid = sparse.csr_array(sparse.diags_array(judged) @ planted.valid)
    for one in (train, valid):
        one.eliminate_zeros()
    users, items = planted.user_ids, planted.item_ids
    shard = build_shard_from_matrices("shop", users, items, (train, valid, planted.test), places=np.arange(OWN))
    popular = generator.permutation(np.rint(2000 / np.arange(1, OWN + 1)))
    pairs = np.diag(degrees(train)[1] + popular).astype(np.float32)
    often = np.argsort(-popular)[:3]
    pairs[np.ix_(often, often)] += 40 * (1 - np.eye(3, dtype=np.float32))
    basis = CommonBasis("exact", 0.25, np.diag(pairs).astype(np.int64), pairs=pairs)

    def quality(known: CommonBasis | None) -> float:
        context = RunContext("shop", "run-1", 0, SMALL, tmp_path, basis=known)
        training, _ = begin_training(context, shard, torch.device("cpu"), NEVER)
        return measure_test(shard, freeze("run-1.0", training).ranker.top).primary_value

    assert quality(basis) >= 0.95 * quality(None), "half as good where popularity counts for .85 of the score"


@pytest.mark.parametrize("kind", ["exact", "iterated"])
def test_a_stranger_is_served_like_a_user_with_the_same_basket_and_by_items_of_the_silo(
    shared: tuple[Shard, CommonBasis], kind: str, tmp_path: Path
) -> None:
    shard, basis = shared
    if kind == "iterated":
        basis = iterated(drawn(90, ITEMS_OF_ALL, 0.2, 2), 16)
    training, _ = begin_training(
        RunContext("shop", "run-1", 0, SMALL, tmp_path, basis=basis), shard, torch.device("cpu"), NEVER
    )
    assert training.recipe is not None and training.recipe.common_loudness > 0
    recommender = TrainedRecommender(shard)
    recommender.served = freeze("run-1.0", training)
    own = [shard.item_ids[row] for row in shard.train[[3]].indices]
    user = recommender.for_user(shard.user_ids[3], ListRequest(OWN, exclude_seen=False))
    stranger = recommender.for_basket(own, ListRequest(OWN, exclude_seen=False))
    assert [one.item for one in user.items] == [one.item for one in stranger.items]
    assert {one.item for one in user.items} == set(shard.item_ids)


def test_a_basis_without_places_is_refused(planted: Shard, tmp_path: Path) -> None:
    place = RunContext("shop", "run-1", 0, SMALL, tmp_path, basis=exact(planted.train))
    with pytest.raises(DataError, match="places in the common catalogue"):
        begin_training(place, planted, torch.device("cpu"), NEVER)


def test_choices_with_a_basis_and_without_are_kept_apart(planted: Shard, tmp_path: Path) -> None:
    made = Choice()
    save_choice(planted, 12, tmp_path, made, basis="ab" * 8)
    assert len(list(tmp_path.glob("choice-*-abababababababab.json"))) == 1
    save_choice(planted, 12, tmp_path, made)
    assert len(list(tmp_path.glob("choice-*.json"))) == 2
    assert load_choice(planted, 12, tmp_path, "cd" * 8) == Choice()


def test_a_kept_model_is_rebuilt_with_its_own_basis_alone(shared: tuple[Shard, CommonBasis], tmp_path: Path) -> None:
    (shard, basis), models = shared, tmp_path / "model"
    place = RunContext("shop", "run-1", 0, SMALL, models, basis=basis)
    training, known = begin_training(place, shard, torch.device("cpu"), NEVER)
    best = BestModel(place, ITEMS, shard, TrainedRecommender(shard), training, NEVER, known)
    best.judge(RoundCosts(round=0))
    head = load_head(models)
    assert head is not None and head.basis == basis.digest
    with pytest.raises(DataError, match="of the kept model, got none"):
        rebuild_training(head, shard, models, torch.device("cpu"))
    save_basis(tmp_path / "basis", "run-0", basis)
    again = rebuild_training(head, shard, models, torch.device("cpu"))
    assert (again.recipe, again.basis) == (training.recipe, training.basis)
    assert len(again.fusion.parts) == len(training.fusion.parts)


@pytest.mark.parametrize("dense", [True, False])
def test_ease_by_users_scores_any_basket_like_ease_by_items(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_service.models.closed_form.ease.DENSE_ITEMS", 100 if dense else 0)
    train, strangers = drawn(30, 70, 0.1, 5), drawn(8, 70, 0.1, 6).astype(np.float32)
    scorer = ease(train, 20.0)
    assert isinstance(scorer, UserWeights) != dense
    expected = strangers @ ease_weights(train.astype(np.float32), 20.0)
    np.testing.assert_allclose(standard_scores(scorer, strangers), expected, atol=1e-5)
    users = standard_scores(scorer, train.astype(np.float32))
    np.testing.assert_allclose(users, ease_scores(train, 20.0)(np.arange(30)), atol=1e-5)
