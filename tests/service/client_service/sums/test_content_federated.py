"""Shops without a common item sum how features of their items go together, and each makes its model with that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest

from client_service.data.interaction_files import load_shard
from client_service.model_store.model_files import load_head
from client_service.models.closed_form.content import ContentSums, add_constant, find_item_features, sum_content
from client_service.sums.content import ContentStatistics
from client_service.sums.storage import load_basis, load_basis_head
from shared.method.settings import BasisSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome, admit_late_clients, execute_run, ignore_progress
from simulation.experiments.in_process import open_federation
from tests.support.described_shops import write_described_shop
from tests.support.small import SMALL

METHOD = SMALL.model_copy(update={"sums": {"content": BasisSettings(kind="content")}})


def describe(folder: Path, *, secure: bool, late: bool = False) -> Experiment:
    shards = [write_described_shop(folder / "shards" / f"client-{one}", one) for one in range(1, 5)]
    later = (shards[-1],) if late else ()
    return Experiment(tuple(shards), folder / "run", METHOD, rounds=1, device="cpu", secure=secure, late=later)


def conduct(described: Experiment) -> Outcome:
    async def both() -> Outcome:
        async with open_federation(described) as federation:
            held = await execute_run(federation, described.run_request(), ignore_progress)
            return held if not described.late else await admit_late_clients(federation, held, ignore_progress)

    return anyio.run(both)


def kept(described: Experiment, shard: Path) -> ContentStatistics:
    folder = described.state_folder(shard) / "basis"
    head = load_basis_head(folder, "content")
    assert head is not None
    found = load_basis(folder, head.digest)
    assert isinstance(found, ContentStatistics)
    return found


def pooled(shards: Sequence[Path]) -> ContentSums:
    parts = []
    for path in shards:
        shard = load_shard(path)
        features = find_item_features(shard)
        assert features is not None
        parts.append(sum_content(shard.train, add_constant(features.values)))
    return ContentSums(*(np.sum(one, axis=0) for one in zip(*parts, strict=True)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Experiment]:
    found = {}
    for secure in (False, True):
        found[secure] = describe(tmp_path_factory.mktemp("shops"), secure=secure)
        conduct(found[secure])
    return found


def test_what_the_services_sum_is_the_sum_of_the_others_data_masked_or_not(runs: dict[bool, Experiment]) -> None:
    for place in range(4):
        opened, masked = (kept(one, one.shards[place]) for one in runs.values())
        assert opened.digest == masked.digest == kept(runs[True], runs[True].shards[0]).digest
        others = pooled([shard for number, shard in enumerate(runs[True].shards) if number != place])
        for one, two, whole in zip(opened.sums, masked.sums, others, strict=True):
            np.testing.assert_array_equal(one, two)
            assert np.abs(two - whole).max() < 1e-8 * np.abs(whole).max()


def test_models_are_made_with_the_sums_and_the_ledger_names_what_left(runs: dict[bool, Experiment]) -> None:
    described = runs[True]
    shard = described.shards[0]
    head = load_head(described.make_client_settings(shard, aggregator_url="http://127.0.0.1").models_directory)
    assert head is not None and head.content == kept(described, shard).digest and head.recipe is not None
    assert head.recipe.setting("content") is not None and "content" in {part.name for part in head.recipe.parts}
    ledger = (described.state_folder(shard) / "ledger.jsonl").read_text("utf-8")
    assert all(f"content.{name}" in ledger for name in ("profiles", "pairs", "items"))


def test_a_shop_that_joins_after_the_run_has_the_sums_of_all_that_were_there(tmp_path: Path) -> None:
    described = describe(tmp_path, secure=True, late=True)
    outcome = conduct(described)
    late = kept(described, described.shards[-1])
    assert not late.included and outcome.qualities["client-4"].finished
    for found, whole in zip(late.sums, pooled(described.shards[:3]), strict=True):
        assert np.abs(found - whole).max() < 1e-8 * np.abs(whole).max()


def test_shops_that_share_content_sums_alone_make_their_models_of_these(tmp_path: Path) -> None:
    alone = describe(tmp_path, secure=True)
    method = METHOD.model_copy(update={"strategy": {"train": False, "send": False}})
    described = replace(alone, method=method)
    outcome = conduct(described)
    assert outcome.history.request.part == "content"
    head = load_head(
        described.make_client_settings(described.shards[0], aggregator_url="http://127.0.0.1").models_directory
    )
    assert head is not None and head.content == kept(described, described.shards[0]).digest
    ledger = (described.state_folder(described.shards[0]) / "ledger.jsonl").read_text("utf-8")
    assert "content.pairs" in ledger and "pooling" not in ledger
