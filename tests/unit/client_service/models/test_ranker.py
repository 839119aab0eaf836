"""The ranker's two stages give the list that scoring everything would give, unless the limit on candidates cuts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import client_service.models.ranker
from client_service.data.interactions import Shard
from client_service.models.encoders import lgcn
from client_service.models.initial_filter import Filter, build_start
from client_service.models.model import Model, ModelInputs
from client_service.models.ranker import Predictor, Ranker, Side
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification

METHOD = MethodSettings(width=4, layers=2, cutoff=9)


def trained(shard: Shard, *, exact: bool, reach: float = 1.0) -> Model:
    """A model whose every part is other than at its start; `reach` scales the predictive MLP's part of the score."""
    spectrum = low_spectrum(shard.train, METHOD.cutoff)
    start = build_start(Filter(9, 0.4, 0.3), spectrum, shard.train) if exact else None
    model = lgcn.build(ModelInputs(spectrum, shard.train, start, None, METHOD))
    initial = initial_parameters(mlp_specification(METHOD), 1, exact=False)
    own, generator = dict(model.named_parameters()), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, value in initial.items():
            own[name].copy_(torch.from_numpy(value))
        own["embedding"].add_(torch.randn(own["embedding"].shape, generator=generator) * 0.1)
        own["kernels"].add_(torch.randn(own["kernels"].shape, generator=generator) * 0.1)
        model.head.log_alpha.fill_(0.2)
        model.head.predictive.output.weight.mul_(reach)
        model.head.predictive.output.bias.fill_(0.7)
    return model


@torch.no_grad()
def exhaustive(model: Model) -> np.ndarray:
    users, items = model.pooled()
    return model.head.score_all(users, items).numpy()


def ranking(scores: np.ndarray, seen: np.ndarray, k: int) -> list[list[int]]:
    return np.argsort(-np.where(seen, -np.inf, scores), axis=1, kind="stable")[:, :k].tolist()


def overlap(a: list[list[int]], b: list[list[int]]) -> float:
    return float(np.mean([len(set(x) & set(y)) / len(x) for x, y in zip(a, b, strict=True)]))


@pytest.mark.parametrize(
    ("exact", "reach"), [(True, 0.0), (True, 0.02), (True, 1.0), (True, 5.0), (False, 0.02), (False, 1.0)]
)
def test_lists_and_scores_are_those_of_scoring_everything(planted: Shard, exact: bool, reach: float) -> None:
    model, seen = trained(planted, exact=exact, reach=reach), planted.train.toarray() > 0
    scores, ranker, users = exhaustive(model), model.freeze(), np.arange(40)
    expected = ranking(scores, seen, 8)
    assert ranker.top(users, planted.train, 8).tolist() == expected
    found, values = ranker.top_k_with_scores(ranker.users[users], seen, 8)
    np.testing.assert_allclose(values, np.take_along_axis(scores, found, 1), atol=1e-5)


def test_candidates_are_really_left_out_where_the_mlp_cannot_lift_them(planted: Shard) -> None:
    ranker = trained(planted, exact=True, reach=0.02).freeze()
    base = ranker._base(ranker.users)
    assert ranker._candidates(base, 8).shape[1] < 40


def test_rows_are_those_of_the_users_asked_for(planted: Shard) -> None:
    ranker = trained(planted, exact=True).freeze()
    whole = ranker.top(np.arange(40), planted.train, 5)
    asked = np.array([31, 2, 2])
    assert ranker.top(asked, planted.train[asked], 5).tolist() == whole[asked].tolist()


def test_when_the_limit_cuts_the_best_by_base_score_are_ranked_by_full_score(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = trained(planted, exact=True, reach=0.5), planted.train.toarray() > 0
    scores, ranker, users = exhaustive(model), model.freeze(), np.arange(40)
    monkeypatch.setattr(client_service.models.ranker, "CANDIDATES", 10)
    base = np.where(seen, -np.inf, ranker.users.embedding @ ranker.items.embedding.T)
    cut = np.ones_like(seen)
    np.put_along_axis(cut, np.argsort(-base, axis=1)[:, :10], False, axis=1)
    found = ranker.top(users, planted.train, 5).tolist()
    assert found == ranking(scores, cut, 5)
    # A quarter of the catalogue gives more than half of every list on average, all of it gives all.
    agreement = overlap(found, ranking(scores, seen, 5))
    assert 0.5 < agreement < 1.0
    monkeypatch.setattr(client_service.models.ranker, "CANDIDATES", 40)
    assert overlap(ranker.top(users, planted.train, 5).tolist(), ranking(scores, seen, 5)) == 1.0


def test_a_limit_below_the_length_of_a_list_does_not_shorten_it(
    planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_service.models.ranker, "CANDIDATES", 2)
    ranker = trained(planted, exact=True).freeze()
    lists = ranker.top(np.arange(40), planted.train, 6)
    assert lists.shape == (40, 6) and (lists >= 0).all()


def test_a_list_longer_than_the_candidates_ends_in_minus_one(shard_of: Callable[..., Shard]) -> None:
    shard = shard_of([[1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1], [1, 0, 0, 1]])
    for exact in (True, False):
        lists = trained(shard, exact=exact).freeze().top(np.arange(4), shard.train, 4)
        assert [sorted(row) for row in lists.tolist()] == [
            [-1, -1, 2, 3],
            [-1, -1, 1, 3],
            [-1, -1, -1, 0],
            [-1, -1, 1, 2],
        ]
        assert all(row == sorted(row, key=lambda item: item < 0) for row in lists.tolist())  # the gaps come last


def test_blocks_of_users_give_what_all_at_once_give(planted: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    ranker, users = trained(planted, exact=True).freeze(), np.arange(40)
    whole = ranker.top(users, planted.train, 7).tolist()
    monkeypatch.setattr(client_service.models.ranker, "BLOCK", 1)
    assert ranker.top(users, planted.train, 7).tolist() == whole


def test_a_frozen_model_is_not_moved_by_later_training(planted: Shard) -> None:
    model = trained(planted, exact=True)
    ranker, users = model.freeze(), np.arange(40)
    before = ranker.top(users, planted.train, 7).tolist()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.5)
    assert ranker.top(users, planted.train, 7).tolist() == before
    assert model.freeze().top(users, planted.train, 7).tolist() != before


def side(generator: np.random.Generator, rows: int) -> Side:
    embedding, narrow, hidden = (generator.standard_normal((rows, width)) for width in (3, 2, 2))
    return Side(embedding, narrow, hidden)


@given(
    seed=st.integers(0, 1 << 32),
    reach=st.floats(0.0, 3.0),
    k=st.integers(1, 12),
    density=st.floats(0.0, 1.0),
    items=st.integers(1, 40),
)
@settings(max_examples=150, deadline=None)
def test_no_item_that_belongs_in_a_list_is_ever_pruned(
    seed: int, reach: float, k: int, density: float, items: int
) -> None:
    generator = np.random.default_rng(seed)
    users, catalogue = side(generator, 4), side(generator, items)
    # Large hidden values saturate tanh, so that the MLP's part really reaches both of its ends.
    on_both, output = generator.standard_normal((2, 2)) * 5, generator.choice([-1.0, 1.0], 2) * reach / 2
    ranker = Ranker(users, catalogue, Predictor(on_both, output, np.float32(0.5)), True)
    excluded = generator.random((4, items)) < density
    full = np.empty((4, items))
    for u in range(4):
        for i in range(items):
            hidden = on_both @ (users.narrow[u] * catalogue.narrow[i]) + users.hidden[u] + catalogue.hidden[i]
            full[u, i] = users.embedding[u] @ catalogue.embedding[i] + output @ np.tanh(hidden) + 0.5
    found, scores = ranker.top_k_with_scores(users, excluded, k)
    for u in range(4):
        open_items = [i for i in range(items) if not excluded[u, i]]
        best = sorted((full[u, i] for i in open_items), reverse=True)[:k]
        listed = [i for i in found[u].tolist() if i >= 0]
        assert len(set(listed)) == len(listed) == len(best) and set(listed) <= set(open_items)
        np.testing.assert_allclose(full[u, listed], best, atol=1e-6)
        np.testing.assert_allclose(scores[u, : len(best)], best, atol=1e-6)
