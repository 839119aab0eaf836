"""What comes next in a visit: by a model, by counts before there is one, and by popularity where nothing is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from client_service.data.prefixes import Prefixes
from client_service.data.sessions import SessionShard
from client_service.evaluation.session_ranking import measure_prefixes
from client_service.model_store.session_models import freeze_sessions
from client_service.serving import next_items
from client_service.serving.messages import NextIn
from client_service.serving.next_items import NextItems
from client_service.tasks.sessions import answer_visits
from client_service.training.session_trainer import SessionTrainer
from shared.method.settings import MethodSettings, SessionSettings

CPU = torch.device("cpu")


@pytest.fixture(params=["own", "catalogue"])
def training(shop: SessionShard, taught: MethodSettings, request: pytest.FixtureRequest) -> SessionTrainer:
    trained = SessionSettings(candidates=request.param)
    method = taught.model_copy(update={"catalogue": len(shop.item_ids) + 7, "sessions": trained})
    placed = shop.with_places(np.arange(len(shop.item_ids)) + 3, "listed")
    return SessionTrainer(placed, method, CPU)


@pytest.fixture
def answers(training: SessionTrainer) -> NextItems:
    found = answer_visits(training.shard)
    found.served = freeze_sessions("run.1", training)
    return found


def test_the_answer_is_the_softmax_of_the_model_s_own_scores(answers: NextItems, training: SessionTrainer) -> None:
    shard = training.shard
    clicks = [4, 1, 4]
    found = answers.answer(NextIn(session=[shard.item_ids[row] for row in clicks], k=3)).results[0]
    own = torch.from_numpy(training.own)
    scores = training.model(own[torch.tensor([clicks])], torch.tensor([3]))[0, own]
    expected = torch.softmax(scores, 0).sort(descending=True, stable=True)
    assert found.model == "run.1" and found.fallback is None
    assert [one.item for one in found.items] == [shard.item_ids[row] for row in expected.indices[:3].tolist()]
    assert [one.score for one in found.items] == pytest.approx(expected.values[:3].tolist(), rel=1e-5)


def test_a_batch_answers_as_each_session_alone(answers: NextItems, shop: SessionShard) -> None:
    sessions = [list(shop.item_ids[first : first + length]) for first, length in [(0, 1), (5, 7), (2, 3)]]
    sessions.insert(1, ["unknown"])
    together = answers.answer(NextIn(sessions=sessions, k=4)).results
    for session, found in zip(sessions, together, strict=True):
        [alone] = answers.answer(NextIn(session=session, k=4)).results
        assert [one.item for one in found.items] == [one.item for one in alone.items]
        assert found.fallback == alone.fallback and found.unknown_items == alone.unknown_items


def test_repeats_and_order_count(answers: NextItems, shop: SessionShard) -> None:
    a, b = shop.item_ids[:2]
    lists = [answers.answer(NextIn(session=one, k=9)).results[0].items for one in ([a, b, a], [b, a], [a, b])]
    assert len({tuple(one.score for one in items) for items in lists}) == 3


def test_before_there_is_a_model_what_followed_the_last_click_is_counted(shop: SessionShard) -> None:
    answers = answer_visits(shop)
    train = shop.train
    last = int(train.last[0])
    followers = np.bincount(train.targets[train.last == last], minlength=len(shop.item_ids))
    found = answers.answer(NextIn(session=[shop.item_ids[last]], k=1)).results[0]
    assert found.fallback == "no model yet" and found.model is None
    assert followers[shop.rows[found.items[0].item]] == followers.max()


def test_a_session_of_unknown_items_gets_popular_ones(answers: NextItems, shop: SessionShard) -> None:
    found = answers.answer(NextIn(session=["nobody", "knows"], k=2)).results[0]
    assert found.fallback == "no known item in the session" and found.unknown_items == 2
    counts = np.bincount(shop.split_sessions(0)[0], minlength=len(shop.item_ids))
    assert counts[shop.rows[found.items[0].item]] == counts.max()


def test_what_is_excluded_never_comes(answers: NextItems, shop: SessionShard) -> None:
    everything = list(shop.item_ids)
    asked = NextIn(session=everything[:4], exclude=everything[4:-2], exclude_seen=True, k=20)
    found = answers.answer(asked).results[0]
    assert {one.item for one in found.items} == set(everything[-2:])


@pytest.mark.parametrize(
    "body", [{}, {"session": []}, {"session": ["a"], "sessions": [["a"]]}, {"session": ["a"] * 201}]
)
def test_a_request_that_asks_nothing_or_too_much_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NextIn.model_validate(body)


def test_a_model_at_rest_is_judged_as_the_training_one(answers: NextItems, training: SessionTrainer) -> None:
    shard, served, frozen = training.shard, answers.served, freeze_sessions("run.2", training)
    assert served is not None
    whole = measure_prefixes(served.score, shard.test, len(shard.item_ids))
    training.initialise(99)  # the frozen copy has parameters of its own
    for one in (served, frozen):
        assert measure_prefixes(one.score, shard.test, len(shard.item_ids)) == whole


def test_all_clicks_of_a_long_session_are_left_out_where_that_is_asked(answers: NextItems, shop: SessionShard) -> None:
    session = [*shop.item_ids[:5], *[shop.item_ids[6]] * 100]
    found = answers.answer(NextIn(session=session, k=100, exclude_seen=True)).results[0]
    assert {one.item for one in found.items} == set(shop.item_ids) - set(session)


def test_a_model_that_has_diverged_does_not_answer(
    answers: NextItems, training: SessionTrainer, shop: SessionShard
) -> None:
    with torch.no_grad():
        training.model.item.table.fill_(float("nan"))
    answers.served = freeze_sessions("run.2", training)
    found = answers.answer(NextIn(session=[shop.item_ids[0]], k=3)).results[0]
    assert found.fallback == "the model's scores are no numbers" and found.model is None and len(found.items) == 3


def test_requests_that_are_answered_together_get_what_each_gets_alone(answers: NextItems, shop: SessionShard) -> None:
    first, second, third = shop.item_ids[:3]
    asked = [
        NextIn(session=[first], k=2),
        NextIn(sessions=[[second], [first, third]], k=3, exclude_seen=True),
        NextIn(session=[third], k=2),
        NextIn(session=[third], k=2, exclude=[first]),
    ]
    together, alone = answers.answer_all(asked), [answers.answer(one) for one in asked]
    for one, other in zip(together, alone, strict=True):
        assert [[item.item for item in found.items] for found in one.results] == [
            [item.item for item in found.items] for found in other.results
        ]


def test_known_and_unknown_sessions_come_back_in_their_order(
    answers: NextItems, shop: SessionShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_items, "SCORES", 2 * len(shop.item_ids))  # two sessions at a time
    sessions = [[item] if number % 3 else ["nobody's"] for number, item in enumerate(shop.item_ids[:8])]
    found = answers.answer(NextIn(sessions=sessions, k=2)).results
    assert [one.unknown_items for one in found] == [1, 0, 0, 1, 0, 0, 1, 0]
    for session, one in zip(sessions, found, strict=True):
        alone = answers.answer(NextIn(session=session, k=2)).results[0]
        assert [item.item for item in one.items] == [item.item for item in alone.items]


def test_only_the_last_fifty_clicks_of_a_long_session_count(answers: NextItems, shop: SessionShard) -> None:
    session = [shop.item_ids[row % len(shop.item_ids)] for row in range(120)]
    long, short = (answers.answer(NextIn(session=one, k=5)).results[0] for one in (session, session[-50:]))
    assert long.items == short.items


def test_prefixes_by_other_numbers_are_the_same_clicks() -> None:
    found = Prefixes(np.array([0, 2, 0]), np.array([0]), np.array([2])).renumber(np.array([5, 7, 9]))
    assert found.clicks.tolist() == [5, 9, 5] and found.targets.tolist() == [5]
