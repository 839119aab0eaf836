"""A session model that a run has trained goes on answering after its shard has changed, by the ids of the items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.data.session_files import load_session_shard
from client_service.data.sessions import SessionShard
from client_service.federation.training_run import TrainingRun
from client_service.model_store.session_models import ServedSessions
from client_service.refresh.rebuild import ModelRenewal
from client_service.runtime.interruption import NEVER
from client_service.settings import client_settings
from client_service.tasks.sessions import SESSIONS, answer_visits
from client_service.tasks.task import RunContext
from client_service.training.session_trainer import SessionTrainer, list_session_rows
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE

CPU = torch.device("cpu")


def without_first_items(shard: SessionShard, count: int) -> SessionShard:
    """The visits that meet none of the first items, over the others alone."""
    owners = np.repeat(np.arange(len(shard.splits)), np.diff(shard.starts))
    gone = np.unique(owners[shard.clicks < count])
    kept = ~np.isin(owners, gone)
    lengths = np.diff(shard.starts)[~np.isin(np.arange(len(shard.splits)), gone)]
    return replace(
        shard,
        item_ids=shard.item_ids[count:],
        clicks=shard.clicks[kept] - count,
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        splits=np.delete(shard.splits, gone),
        places=np.arange(len(shard.item_ids) - count),
    )


def train(shard: SessionShard, method: MethodSettings) -> SessionTrainer:
    training = SessionTrainer(shard, method, CPU)
    for number in range(1, 4):
        training.context = RoundContext(round=number, rounds=3, seed=0)
        training.train()
    return training


@pytest.mark.parametrize("candidates", ["own", "catalogue"])
def test_items_that_both_shards_have_keep_their_rows(
    shop: SessionShard, taught: MethodSettings, candidates: str
) -> None:
    settings = taught.sessions.model_copy(update={"candidates": candidates})
    method = taught.model_copy(update={"catalogue": len(shop.item_ids), "sessions": settings})
    fewer = replace(without_first_items(shop, 5), places=np.arange(5, len(shop.item_ids)))
    before, after = train(shop, method), SessionTrainer(fewer, method, CPU)
    trained = {name: value.detach().clone() for name, value in before.model.named_parameters()}
    assert after.transfer(trained, list_session_rows(shop))
    rows = after.model.item.table.detach()
    assert torch.equal(rows[after.own], trained[ITEM_TABLE][before.own][5:])
    assert torch.equal(after.model.transform.weight, trained["transform.weight"])
    assert not after.transfer(trained, replace(list_session_rows(shop), catalogue="another"))


def test_a_changed_shard_has_the_trained_model_without_a_run(
    visits: Callable[[int], list[Path]], taught: MethodSettings, tmp_path: Path
) -> None:
    folder = visits(1)[0]
    shard = load_session_shard(folder)
    method = taught.model_copy(update={"catalogue": len(shard.item_ids)})
    given = {"name": "shop", "shard": folder, "task": "sessions", "state_directory": tmp_path / "state"}
    policy = {"strategies": ["fedavg"], "item_tables": True}
    settings = client_settings(**given, strategy="fedavg", policy=policy, method=method)
    answers, place = answer_visits(shard), RunContext("shop", "run-1", 0, method, settings.models_directory)
    run = TrainingRun(place, SESSIONS, shard, answers, CPU)
    run.begin(Parameters(train(shard, method).arrays()), 0)
    after = without_first_items(shard, 5)
    smaller = settings.model_copy(update={"method": method.model_copy(update={"catalogue": len(after.item_ids)})})
    renewal = ModelRenewal(smaller, SESSIONS, after, CPU, NEVER)
    found = renewal.renew(erased=True)
    assert found is not None and isinstance(found.served, ServedSessions)
    assert answers.served is not None and answers.served.network is not None
    assert renewal.keep(found).version == "refresh.1"
    assert np.array_equal(found.served.vectors.numpy(), answers.served.network.vectors[5:])
