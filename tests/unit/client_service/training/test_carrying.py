"""What a run has trained goes over to the next shard by the ids of users and items, whatever the model is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from client_service.data.interactions import Shard
from client_service.evaluation.ranking import measure_validation
from client_service.event_log.shard_update import append_events
from client_service.model_store.model_files import freeze
from client_service.models.initial_filter import Filter
from client_service.models.parameter_transfer import ShardRows, match_rows
from client_service.training.item_trainer import ItemTrainer, list_item_rows
from client_service.training.training_state import RoundContext
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import EXCHANGES
from shared.strategies.local_client import Objective

CATALOGUE, CUTOFF = 50, 8
SIZES = {"width": 8, "layers": 1, "cutoff": CUTOFF, "catalogue": CATALOGUE, "batch_size": 32, "negatives": 16}
METHOD = MethodSettings(**SIZES, learning_rate=0.02, start="random")
MODELS = sorted(name for name, one in EXCHANGES.items() if one.task == "items")


def placed(shard: Shard) -> Shard:
    """With a place in the catalogue for each item, by its number."""
    return replace(shard, places=np.array([int(item[1:]) + 5 for item in shard.item_ids]))


def begin(shard: Shard, kind: str, start: Filter | None = None) -> ItemTrainer:
    method = METHOD if start is None else METHOD.model_copy(update={"start": "exact", "fusion": False})
    return ItemTrainer(placed(shard), low_spectrum(shard.train, CUTOFF), method, torch.device("cpu"), start, kind=kind)


def train(shard: Shard, kind: str, start: Filter | None = None, rounds: int = 6) -> ItemTrainer:
    training = begin(shard, kind, start)
    for number in range(1, rounds + 1):
        training.context = RoundContext(round=number, rounds=rounds, seed=0)
        training.train(Objective(bias_aware=False))
    return training


def parameters(training: ItemTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in training.model.named_parameters()}


def quality(training: ItemTrainer) -> float:
    users = np.arange(len(training.shard.user_ids))
    return measure_validation(training.shard, freeze("v", training).ranker.top, users).primary_value


@pytest.fixture
def grown(planted: Shard) -> Shard:
    """One user more, who likes what the first ten like, and an item more; users and items lie in another order."""
    liked = [("newcomer", f"i{item}") for item in range(5)] + [("u3", "i40"), ("u7", "i39")]
    rows = pl.DataFrame(liked, schema=["user", "item"], orient="row")
    found = append_events(planted, rows, Path())
    assert found.user_ids[:40] != planted.user_ids and "u39" in found.user_ids
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_starts_at_random_ranks_as_before_and_knows_the_new_user(
    planted: Shard, grown: Shard, kind: str
) -> None:
    before, after = train(planted, kind, rounds=20), begin(grown, kind)
    untrained = quality(after)
    assert after.transfer(parameters(before), list_item_rows(planted))
    assert quality(before) > untrained + 0.2 and quality(after) > quality(before) - 0.05
    row, users = grown.user_row("newcomer"), after.model.encoder.embedding.detach().numpy()
    assert row is not None
    first = freeze("v", after).ranker.top(np.array([row]), grown.train[[row]], 5)[0]
    own = sum(int(grown.item_ids[item][1:]) < 10 for item in first)
    assert own >= 4, [grown.item_ids[item] for item in first]
    assert np.isfinite(users).all()


@pytest.mark.parametrize("kind", [name for name in MODELS if EXCHANGES[name].starts_at_filter])
def test_one_that_starts_at_a_filter_keeps_what_training_has_added(planted: Shard, grown: Shard, kind: str) -> None:
    start = Filter(CUTOFF, ridge=0.1, exponent=0.25)
    before, after = train(planted, kind, start), begin(grown, kind, start)
    at_start = quality(after)
    assert after.transfer(parameters(before), list_item_rows(planted))
    assert quality(after) >= min(at_start, quality(before)) - 0.05
    old, new = planted.user_row("u12"), grown.user_row("u12")
    assert torch.equal(after.model.encoder.embedding[new], before.model.encoder.embedding[old])
    added = grown.user_row("newcomer")
    assert not torch.equal(after.model.encoder.embedding[added], after.model.encoder.origin[added])


def test_on_the_same_shard_nothing_changes_but_the_order_of_rows(planted: Shard) -> None:
    """The filter's columns are turned by what lies nearest: by nothing, where nothing has changed."""
    start = Filter(CUTOFF, ridge=0.1, exponent=0.25)
    before, after = train(planted, "lgcn", start), begin(planted, "lgcn", start)
    assert after.transfer(parameters(before), list_item_rows(planted))
    assert all(torch.equal(value, parameters(before)[name]) for name, value in parameters(after).items())


def test_a_user_whose_items_have_changed_is_folded_in_where_no_graph_tells_of_them(
    planted: Shard, grown: Shard
) -> None:
    before, after = train(planted, "mf"), begin(grown, "mf")
    assert after.transfer(parameters(before), list_item_rows(planted))
    embedding, known = after.model.encoder.embedding, before.model.encoder.embedding
    for user in planted.user_ids:
        same = torch.equal(embedding[grown.user_row(user)], known[planted.user_row(user)])
        assert same is (user not in ("u3", "u7")), user


@pytest.mark.parametrize("wrong", [{"catalogue": "another"}, {"width": 4}, {"kind": "ngcf"}])
def test_a_model_of_another_kind_or_catalogue_changes_nothing(
    planted: Shard, grown: Shard, wrong: dict[str, Any]
) -> None:
    given, rows = parameters(begin(planted, wrong.get("kind", "mf"))), list_item_rows(planted)
    if "width" in wrong:
        given["embedding"] = given["embedding"][:, :4]
    after = begin(grown, "mf")
    untouched = parameters(after)
    assert not after.transfer(given, replace(rows, catalogue=wrong.get("catalogue", "")))
    assert all(torch.equal(value, untouched[name]) for name, value in parameters(after).items())


def test_rows_are_matched_by_their_ids() -> None:
    matched = match_rows(ShardRows(("a", "b", "c"), ("x", "y")), ShardRows(("b", "d"), ("w", "x", "y")))
    assert [(one.new.tolist(), one.old.tolist()) for one in (matched["users"], matched["items"], matched["nodes"])] == [
        ([0], [1]),
        ([1, 2], [0, 1]),
        ([0, 3, 4], [1, 3, 4]),
    ]
