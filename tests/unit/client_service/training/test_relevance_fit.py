"""The score of an answer: between 0 and 1, in the order of the raw scores, and as likely as it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from client_service.compiled.model import UNFITTED, Relevance
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.federation.best_model import load_model
from client_service.model_store.model_files import freeze, load_head
from client_service.models.ranker import Ranker
from client_service.runtime.interruption import NEVER
from client_service.serving.ranking import ListRequest
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from client_service.training.item_trainer import ItemTrainer
from client_service.training.relevance_fit import _fit, fit_relevance
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from tests.support.kept import keep_first_model

SMALL = MethodSettings(width=4, layers=1, cutoff=12, negatives=4)


def ranker_of(shard: Shard) -> Ranker:
    return freeze("run-1.0", ItemTrainer(shard, low_spectrum(shard.train, 12), SMALL, torch.device("cpu"))).ranker


@given(
    scores=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30),
    slope=st.floats(0.01, 10),
    intercept=st.floats(-10, 10),
)
def test_relevance_lies_between_0_and_1_and_keeps_the_order(
    scores: list[float], slope: float, intercept: float
) -> None:
    ascending = np.sort(np.array(scores, dtype=np.float32))
    found = Relevance(slope, intercept).apply(ascending)
    assert ((found >= 0.0) & (found <= 1.0)).all() and (np.diff(found) >= 0.0).all()


def test_scores_of_some_items_are_those_that_lists_have(planted: Shard) -> None:
    ranker, rows = ranker_of(planted), np.array([3, 7])
    found, values = ranker.top_k_with_scores(ranker.users[rows], np.zeros((2, 40), dtype=bool), 40)
    np.testing.assert_allclose(ranker.scores(rows, found), values, rtol=1e-5)


def test_a_fit_finds_the_sigmoid_by_which_items_were_drawn() -> None:
    generator = np.random.default_rng(0)
    scores = generator.standard_normal(200_000)
    wanted = (generator.random(len(scores)) < 1 / (1 + np.exp(-(1.5 * scores - 3.0)))).astype(np.float64)
    slope, intercept = _fit((scores, wanted, np.ones(len(scores))))
    assert (slope, intercept) == pytest.approx((1.5, -3.0), abs=0.05)
    # Every fourth of the others, each for four of them, says the same.
    kept = (wanted > 0) | (np.arange(len(scores)) % 4 == 0)
    weights = np.where(wanted > 0, 1.0, 4.0)
    assert _fit((scores[kept], wanted[kept], weights[kept])) == pytest.approx((1.5, -3.0), abs=0.08)


def test_relevance_is_on_average_the_share_of_validation_items_among_what_is_not_met(planted: Shard) -> None:
    ranker = ranker_of(planted)
    found = fit_relevance(planted, ranker, NEVER)
    assert found.slope > 0
    every = np.tile(np.arange(40), (40, 1))
    unseen = planted.train.toarray() == 0
    expected = float(planted.valid.toarray()[unseen].mean())
    assert float(found.apply(ranker.scores(np.arange(40), every))[unseen].mean()) == pytest.approx(expected, rel=0.3)


def test_scores_that_say_the_opposite_still_keep_their_order(planted: Shard) -> None:
    ranker = ranker_of(planted)
    wrong = replace(ranker, users=replace(ranker.users, embedding=-ranker.users.embedding))
    assert fit_relevance(planted, wrong, NEVER).slope > 0


def test_without_validation_items_nothing_is_fitted(planted: Shard) -> None:
    nothing = sparse.csr_array(planted.valid.shape)
    bare = build_shard_from_matrices("shop", planted.user_ids, planted.item_ids, (planted.train, nothing, nothing))
    assert fit_relevance(bare, ranker_of(planted), NEVER) is UNFITTED


def test_it_is_stored_with_the_kept_model_and_a_file_without_it_is_read(settings: ClientSettings) -> None:
    shard, recommender = keep_first_model(settings)
    folder = settings.state_directory / "model"
    head, kept = load_head(folder), load_model(ITEMS, shard, folder, torch.device("cpu"))
    assert head is not None and kept is not None and recommender.served is not None
    assert head.relevance == kept.relevance == recommender.served.relevance != UNFITTED
    path = folder / "model.json"
    path.write_text(head.model_copy(update={"relevance": None}).model_dump_json())
    earlier = load_model(ITEMS, shard, folder, torch.device("cpu"))
    assert earlier is not None and earlier.relevance is UNFITTED


def scores(recommender: Recommender, **wishes: Any) -> list[tuple[str, float]]:
    answer = recommender.for_user(recommender._shard.user_ids[0], ListRequest(12, exclude_seen=False, **wishes))
    return [(one.item, one.score) for one in answer.items]


def test_an_answer_has_relevance_and_the_raw_score_where_it_is_asked_for(settings: ClientSettings) -> None:
    _, recommender = keep_first_model(settings)
    assert recommender.served is not None
    relevant, raw = scores(recommender), scores(recommender, raw=True)
    assert [item for item, _ in relevant] == [item for item, _ in raw]
    values = np.array([score for _, score in raw], dtype=np.float32)
    assert [score for _, score in relevant] == pytest.approx(recommender.served.relevance.apply(values).tolist())
    assert all(0.0 <= score <= 1.0 for _, score in relevant)
    popular = recommender.for_user("nobody", ListRequest(12))
    assert all(0.0 <= one.score <= 1.0 for one in popular.items)
