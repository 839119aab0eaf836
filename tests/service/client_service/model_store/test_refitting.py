"""A silo with `fit_everything`: choices and figures by held-out data, and answers from all of its data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import torch

from client_service.__main__ import server_settings
from client_service.data.events import SPLIT_TYPE, clean_events
from client_service.data.interaction_files import load_shard, save_shard
from client_service.data.interactions import Shard, build_shard
from client_service.federation.best_model import BestModel, load_model
from client_service.federation.messages import RoundCosts
from client_service.http.server_app import create_server
from client_service.model_store.model_files import ModelHead, ServedItems, freeze, load_head, load_tensors
from client_service.model_store.refitting import Refit
from client_service.runtime.interruption import NEVER
from client_service.serving.ranking import ListRequest
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS, begin_training, judge_test_lists, judge_validation_lists
from client_service.tasks.task import RunContext
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from shared.errors import SettingsError
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.strategies.local_client import PLAIN
from tests.support.compiled import TrainedRecommender
from tests.support.given import Until
from tests.support.kept import keep_first_model
from tests.support.small import SMALL
from tests.support.telling import Serving, all_listed, event, is_erased, items_of, post, refresh

CPU = torch.device("cpu")
CLOSED = SMALL.model_copy(update={"start": "exact"})


@pytest.fixture
def everything(settings: ClientSettings, planted: Shard) -> ClientSettings:
    """A silo whose users have an item held out for each of validation and test."""
    shard = build_shard("client-1", planted.events_with_ids(), None)  # with ids in their order
    save_shard(settings.shard, shard)
    return settings.model_copy(update={"fit_everything": True, "method": CLOSED})


def run_on(
    shard: Shard, folder: Path, *, fit_everything: bool, rounds: int = 0, method: MethodSettings = CLOSED
) -> tuple[ModelHead, Recommender]:
    """A run of so many rounds, and who answers after it."""
    place = RunContext("shop", "run-1", 0, method, folder, fit_everything=fit_everything)
    training, known = begin_training(place, shard, CPU, NEVER)
    answers = TrainedRecommender(shard.with_all_data if fit_everything else shard)
    refit = Refit(shard, folder, CPU) if fit_everything else None
    best = BestModel(place, ITEMS, shard, answers, training, NEVER, known, refit)
    best.judge(RoundCosts(round=0))
    for number in range(1, rounds + 1):
        training.context = replace(training.context, round=number, rounds=rounds)
        training.train(PLAIN)
        best.judge(RoundCosts(round=number))
    best.finish(None, "0" * 64)
    head = load_head(folder)
    assert head is not None
    return head, answers


def all_scores(served: Any) -> Float32:
    users, items = len(served.ranker.users.embedding), len(served.ranker.items.embedding)
    return np.asarray(served.ranker.scores(np.arange(users), np.broadcast_to(np.arange(items), (users, items)).copy()))


def test_choices_figures_and_the_kept_model_are_those_of_a_silo_that_holds_data_out(
    planted: Shard, tmp_path: Path
) -> None:
    head, answers = run_on(planted, tmp_path / "all", fit_everything=True, rounds=2)
    other, before = run_on(planted, tmp_path / "some", fit_everything=False, rounds=2)
    same = ("shard", "round", "start", "recipe", "values", "relevance", "chosen_for")
    assert all(getattr(head, name) == getattr(other, name) for name in same)
    kept, known = (load_tensors(tmp_path / name, one) for name, one in (("all", head), ("some", other)))
    assert kept is not None and known is not None
    assert all(torch.equal(kept[name], known[name]) for name in known)
    assert answers.served is not None and before.served is not None
    assert answers.served.version == before.served.version and answers.served.relevance == before.served.relevance
    assert not np.allclose(all_scores(answers.served), all_scores(before.served))


def test_what_answers_is_the_closed_form_of_all_pairs_with_these_choices(planted: Shard, tmp_path: Path) -> None:
    head, answers = run_on(planted, tmp_path, fit_everything=True)
    whole = planted.with_all_data
    assert whole.train.nnz == planted.train.nnz + planted.valid.nnz + planted.test.nnz and whole.valid.nnz == 0
    spectrum = cached_spectrum(whole, CLOSED.cutoff, None)
    expected = ItemTrainer(whole, spectrum, CLOSED, CPU, head.start, recipe=head.recipe)
    np.testing.assert_allclose(all_scores(answers.served), all_scores(freeze("", expected)), rtol=1e-4, atol=1e-5)


def test_a_user_s_held_out_items_are_his_history_and_are_not_recommended(planted: Shard, tmp_path: Path) -> None:
    _, answers = run_on(planted, tmp_path, fit_everything=True)
    for row, user in enumerate(planted.user_ids):
        had = {planted.item_ids[item] for item in planted.with_all_data.train[[row]].indices}
        listed = {one.item for one in answers.for_user(user, ListRequest(40)).items}
        assert len(had) == 8 and not had & listed and len(listed) == 32
        assert {one.item for one in answers.history(user, 40)[0]} == had


@pytest.mark.parametrize("everybody_likes_everything", [False, True])
def test_a_graph_of_fewer_or_more_frequencies_with_all_pairs_is_answered_from(
    everybody_likes_everything: bool, tmp_path: Path
) -> None:
    rng, users, items = np.random.default_rng(0), 12, 9
    rows = [(f"u{user:02}", f"i{item}") for user in range(users) for item in range(items)]
    splits = rng.permutation(["train"] * 40 + ["valid"] * 34 + ["test"] * 34)
    table = pl.DataFrame(rows, schema=["user", "item"], orient="row").with_columns(split=pl.Series(splits))
    few = pl.col("item").is_in(["i7", "i8"]) & (pl.col("split") == "train")  # i7 and i8 are held out alone
    table = table.filter(~few)
    if not everybody_likes_everything:
        table = table.filter(pl.Series(rng.random(len(table)) < 0.8) | (pl.col("split") == "train"))
    clean, _ = clean_events(table.with_columns(pl.col("split").cast(SPLIT_TYPE)), tmp_path)
    shard = build_shard("shop", clean, None)
    method = CLOSED.model_copy(update={"cutoff": 64})
    _, answers = run_on(shard, tmp_path, fit_everything=True, rounds=1, method=method)
    before, after = (len(cached_spectrum(one, 64, None).singular) for one in (shard, shard.with_all_data))
    assert before > after if everybody_likes_everything else before < after
    assert answers.served is not None and np.isfinite(all_scores(answers.served)).all()


def test_with_training_pairs_data_a_trained_model_stays_what_it_is(planted: Shard, tmp_path: Path) -> None:
    """What training has given is taken over whole."""
    bare = replace(planted.with_all_data, split_digest="")
    head, _ = run_on(planted, tmp_path / "chosen", fit_everything=False)
    training = ItemTrainer(
        bare, cached_spectrum(bare, CLOSED.cutoff, None), CLOSED, CPU, head.start, recipe=head.recipe
    )
    training.train(PLAIN)
    judged = freeze("run-1.1", training)
    trained = head.model_copy(update={"round": 1})
    found = Refit(bare, tmp_path / "model", CPU)(trained, dict(training.model.named_parameters()))
    assert trained.is_trained
    np.testing.assert_allclose(all_scores(found), all_scores(judged), rtol=1e-4, atol=1e-4)


def test_what_is_judged_has_not_seen_what_it_is_judged_by(planted: Shard, tmp_path: Path) -> None:
    """Lists of what answers hold a held-out item nowhere but at the top: it would judge itself."""
    head, _ = run_on(planted, tmp_path, fit_everything=True, rounds=1)
    judged = load_model(ITEMS, planted, tmp_path, CPU)
    answering = load_model(ITEMS, planted, tmp_path, CPU, fit_everything=True)
    assert isinstance(judged, ServedItems) and isinstance(answering, ServedItems)
    own, leaked = (judge_validation_lists(planted, one, NEVER).values for one in (judged, answering))
    assert own == head.values and leaked["ndcg"] > own["ndcg"] + 0.05
    assert (
        judge_test_lists(planted, judged, NEVER).values["ndcg"]
        < judge_test_lists(planted, answering, NEVER).values["ndcg"]
    )


@pytest.mark.anyio
async def test_a_restart_and_a_replica_answer_alike_and_figures_say_when_they_were_measured(
    everything: ClientSettings, serving: Serving, until: Until
) -> None:
    shard, answers = keep_first_model(everything)
    path = f"/v1/users/{shard.user_ids[0]}/recommendations?k=32"
    first = [one.item for one in answers.for_user(shard.user_ids[0], ListRequest(32)).items]
    async with serving(fit_everything=True, method=CLOSED) as http:
        await until(lambda: all_listed(http))
        assert [one["item"] for one in (await http.get(path)).json()["items"]] == first
        assert (await http.get("/v1/quality")).json()["refitted"] is True
        page = (await http.get("/")).text
        assert "before the model was fitted on all data" in page
    app = create_server(server_settings(everything, trains=False))
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        assert [one["item"] for one in (await http.get(path)).json()["items"]] == first


@pytest.mark.anyio
async def test_events_refresh_rollback_and_erasure_go_on_with_all_data(
    everything: ClientSettings, serving: Serving, until: Until
) -> None:
    shard, _ = keep_first_model(everything)
    user, gone = shard.user_ids[0], shard.user_ids[1]
    held_out = {shard.item_ids[item] for item in shard.with_all_data.train[[0]].indices}
    models = everything.models_directory
    async with serving(fit_everything=True, method=CLOSED) as http:
        new = next(item for item in shard.item_ids if item not in held_out)
        await post(http, event(user, new), event("a stranger", new), event("a stranger", shard.item_ids[5]))
        await refresh(http, until)
        after = load_shard(everything.shard)
        listed = {one["item"] for one in (await http.get(f"/v1/users/{user}/recommendations?k=40")).json()["items"]}
        assert len(listed) == 31 and not listed & (held_out | {new})
        assert [path.name for path in models.glob("everything-*")] == [f"everything-{after.digest[:16]}"]
        assert after.valid.nnz == shard.valid.nnz  # figures go on being measured
        earlier = (await http.get("/v1/models")).json()["models"][1]["version"]
        back = await http.post(f"/v1/models/{earlier}/serve")
        assert back.status_code == 200, back.text
        again = {one["item"] for one in (await http.get(f"/v1/users/{user}/recommendations?k=40")).json()["items"]}
        assert len(again) == 31 and not again & (held_out | {new})
        receipt = (await http.delete(f"/v1/users/{gone}")).json()["receipt"]
        await until(lambda: is_erased(http, receipt))
        assert (await items_of(http, gone))["fallback"] == "unknown user"
        digest = load_shard(everything.shard).digest
        assert [path.name for path in models.glob("everything-*")] == [f"everything-{digest[:16]}"]


def test_a_session_silo_refuses_it(settings: ClientSettings) -> None:
    from client_service.tasks.sessions import SESSIONS

    with pytest.raises(SettingsError, match="fit_everything: expected false with task 'sessions'"):
        SESSIONS.read(settings.model_copy(update={"fit_everything": True}))
