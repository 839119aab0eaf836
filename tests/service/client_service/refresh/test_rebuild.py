"""Once a shard has changed, a restart serves a model of the new shard before any run begins, and nothing of the old."""

from __future__ import annotations

from pathlib import Path

import httpx
import polars as pl
import pytest
import torch

from client_service.data.interaction_files import change_shard, load_shard
from client_service.data.interactions import Shard
from client_service.event_log.shard_update import append_events, erase_users
from client_service.federation.best_model import load_model
from client_service.federation.training_run import TrainingRun
from client_service.model_store.model_server import FrozenModel
from client_service.refresh import startup
from client_service.refresh.rebuild import ModelRenewal
from client_service.runtime.interruption import NEVER
from client_service.serving.ranking import ListRequest
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from client_service.tasks.task import RunContext
from shared.method.parameters import Parameters
from shared.method.tensors import initial_parameters, mlp_specification
from tests.support.compiled import TrainedRecommender
from tests.support.given import Opened, Until
from tests.support.kept import keep_first_model

CPU = torch.device("cpu")


def change(settings: ClientSettings) -> Shard:
    """The shard with one user more and one fewer."""
    event = pl.DataFrame({"user": ["user-99", "user-99"], "item": ["item-00", "item-03"]})
    _, after = change_shard(settings.shard, lambda shard: erase_users(append_events(shard, event, Path()), ["user-01"]))
    return after


def renew(settings: ClientSettings, shard: Shard, *, erased: bool = True) -> FrozenModel | None:
    """The model of a shard that has changed, kept; None where there is none."""
    renewal = ModelRenewal(settings, ITEMS, shard, CPU, NEVER)
    found = renewal.renew(erased=erased)
    return None if found is None else renewal.keep(found)


async def version(http: httpx.AsyncClient) -> str | None:
    found: str | None = (await http.get("/v1/status")).json().get("model")
    return found


@pytest.mark.anyio
async def test_a_restart_serves_a_model_of_the_changed_shard_without_an_aggregator(
    settings: ClientSettings, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_first_model(settings)
    old = {path.name for path in (settings.state_directory / "model").glob("model-*.safetensors")}
    change(settings)

    async def serves(http: httpx.AsyncClient) -> bool:
        return await version(http) == "refresh.1"

    async with opened(settings) as http:
        await until(lambda: serves(http))
        new = (await http.get("/v1/users/user-99/recommendations?k=40")).json()
        assert new["model"] == "refresh.1" and "fallback" not in new
        gone = (await http.get("/v1/users/user-01/recommendations")).json()
        assert gone["fallback"] == "unknown user"
    assert not old & {path.name for path in (settings.state_directory / "model").glob("model-*.safetensors")}
    monkeypatch.setattr(startup, "_renew", None)  # it is there: nothing is computed again
    async with opened(settings) as http:
        await until(lambda: serves(http))
        again = (await http.get("/v1/users/user-99/recommendations?k=40")).json()["items"]
    assert [one["item"] for one in again] == [one["item"] for one in new["items"]]
    # A list that is looked up was computed in another block than one that is computed when asked for: last bits differ.
    assert [one["score"] for one in again] == pytest.approx([one["score"] for one in new["items"]], rel=1e-6)


def test_it_ranks_as_the_next_run_s_first_model_does(settings: ClientSettings) -> None:
    keep_first_model(settings)
    shard = change(settings)
    recommender = TrainedRecommender(shard)
    recommender.served = renew(settings, shard)
    renewed = [recommender.for_user(user, ListRequest(5)).items for user in shard.user_ids]
    run = TrainedRecommender(shard)
    place = RunContext(settings.name, "run-2", 0, settings.method, settings.state_directory / "model")
    start = initial_parameters(mlp_specification(settings.method), 0, exact=settings.method.start != "random")
    TrainingRun(place, ITEMS, shard, run, CPU).begin(Parameters(start), 0)
    for user, items in zip(shard.user_ids, renewed, strict=True):
        first = run.for_user(user, ListRequest(5)).items
        assert [one.item for one in first] == [one.item for one in items]
        assert [one.score for one in first] == pytest.approx([one.score for one in items], rel=1e-4)


def test_each_change_has_a_version_of_its_own_and_the_same_shard_none(settings: ClientSettings) -> None:
    shard, _ = keep_first_model(settings)
    folder = settings.state_directory / "model"
    assert renew(settings, shard) is None
    for number in (1, 2):
        event = pl.DataFrame({"user": [f"new-{number}"], "item": ["item-00"]})
        _, after = change_shard(settings.shard, lambda shard, event=event: append_events(shard, event, Path()))  # type: ignore[misc]
        renewed = renew(settings, after)
        assert renewed is not None and renewed.version == f"refresh.{number}"
        assert load_model(ITEMS, after, folder, CPU) is not None


def test_where_no_model_is_kept_there_is_none(settings: ClientSettings) -> None:
    assert renew(settings, load_shard(settings.shard)) is None
