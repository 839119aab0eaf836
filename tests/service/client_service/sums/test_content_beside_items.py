"""Silos that share sums add up item features beside their items: with few texts, with none, with no item in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.pages.overview import build_overview as operator_overview
from client_service.federation.messages import QualityOut, StatusOut
from client_service.model_store.model_files import load_head
from client_service.pages.ledger_view import Summary
from client_service.pages.overview import build_overview as build_silo_overview
from client_service.settings import ClientSettings
from client_service.sums.storage import load_basis_head
from shared.method.settings import BasisSettings
from shared.protocol.schemas import RunHistoryOut
from simulation.experiments.experiment import Experiment
from tests.support.described_shops import write_described_shop
from tests.support.federation import Federation, run_federation
from tests.support.questions import read, wait_until
from tests.support.small import SMALL

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]
SUMS = {
    "items": BasisSettings(kind="items", buckets=1 << 16),
    "basis_exact": BasisSettings(kind="exact", places=64, least_pairs=1),
    "content": BasisSettings(kind="content"),
}
METHOD = SMALL.model_copy(update={"sums": SUMS, "strategy": {"train": False, "send": False}})
FEW = (
    "expected 3 silos or more with something to add, such as titles or attributes of items, or labels of nodes, got 1"
    " of 3"
)


def describe_shops(folder: Path, texts: Sequence[bool], *, common: bool) -> tuple[Experiment, list[ClientSettings]]:
    shops = [
        write_described_shop(folder / "shards" / f"client-{place}", place, common=common, text=text)
        for place, text in enumerate(texts, start=1)
    ]
    found = replace(Experiment(tuple(shops), folder / "run", METHOD, rounds=1, device="cpu"), secure=True)
    found.__dict__["catalogue"] = None  # of the experiment, which would merge the shops' items
    return found, [found.make_client_settings(one, aggregator_url="http://127.0.0.1") for one in shops]


async def hold(running: Federation, run: str, part: str) -> dict[str, Any]:
    """A run of this part, and what the operator sees of it once it is over."""
    answer = await running.operator.post("/v1/runs", json={"clients": len(running.silos), "part": part})
    assert answer.status_code == 201, answer.text

    async def over() -> bool:
        return (await running.history(run))["phase"] in ("finished", "failed")

    await wait_until(over)
    return dict(await running.history(run))


async def await_judged(running: Federation, run: str) -> None:
    async def judged() -> bool:
        told = [await read(http, "quality") for http in running.silos.values()]
        return all(one["run"] == run and one["finished"] for one in told)

    await wait_until(judged)


def sent_by(client: ClientSettings) -> list[str]:
    """The tensors of all updates that have left this silo, by its ledger."""
    lines = (client.state_directory / "ledger.jsonl").read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return [one["name"] for entry in entries if entry.get("call") == "update" for one in entry["tensors"]]


async def test_shops_without_a_common_item_make_their_models_of_the_content_sums(tmp_path: Path) -> None:
    described, clients = describe_shops(tmp_path, (True, True, True, True), common=False)
    async with run_federation(described.make_aggregator_settings(), clients) as running:
        *clients, late = clients
        await running.enter(*clients)
        listed = await hold(running, "run-1", "items")
        assert (listed["sum"]["opened"], listed["sum"]["common"]) == (True, 0)
        summed = await hold(running, "run-2", "content")
        assert summed["phase"] == "finished" and summed["request"]["makes_models"] and summed["sum"]["opened"]
        assert "no common item" in summed["sum"]["reason"]
        await await_judged(running, "run-2")
        refused = await running.operator.post("/v1/runs", json={"clients": 3, "part": "basis"})
        assert refused.status_code == 422 and "got none: nothing is summed over items" in refused.text
        for client in clients:
            head = load_head(client.models_directory)
            assert head is not None and head.content and not head.basis
            lists, sums = ["items.held", "items.pairs"], ["content.items", "content.pairs", "content.profiles"]
            assert sent_by(client) == [*lists, *sums]
        await running.enter(late)
        await await_judged(running, "run-2")
        head = load_head(late.models_directory)
        assert head is not None and head.content and sent_by(late) == [], "who joins later is served from the kept sums"


async def test_a_silo_that_knows_nothing_of_its_items_adds_zeros_to_the_content_sums_of_three(tmp_path: Path) -> None:
    described, clients = describe_shops(tmp_path, (True, True, True, False), common=True)
    async with run_federation(described.make_aggregator_settings(), clients) as running:
        await running.enter(*clients)
        await hold(running, "run-1", "items")
        summed = await hold(running, "run-2", "content")
        assert summed["phase"] == "finished" and not summed["request"].get("makes_models", False)
        await hold(running, "run-3", "basis")
        await await_judged(running, "run-3")
        heads = [load_head(client.models_directory) for client in clients]
        assert all(one is not None and one.basis for one in heads)
        assert [bool(one and one.content) for one in heads] == [True, True, True, False]
        digests = {load_basis_head(one.state_directory / "basis", "content") for one in clients}
        assert len({one.digest for one in digests if one is not None}) == 1


async def test_content_sums_of_one_silo_are_not_opened_and_the_items_are_summed_all_the_same(
    tmp_path: Path,
) -> None:
    described, clients = describe_shops(tmp_path, (True, False, False), common=True)
    async with run_federation(described.make_aggregator_settings(), clients) as running:
        await running.enter(*clients)
        assert 36 <= (await hold(running, "run-1", "items"))["sum"]["common"] <= 40  # two may have one bucket
        failed = await hold(running, "run-2", "content")
        assert (failed["phase"], failed["sum"]["opened"]) == ("failed", False) and FEW in failed["reason"]
        await hold(running, "run-3", "basis")
        await await_judged(running, "run-3")
        for client in clients:
            assert not any(name.startswith("content") for name in sent_by(client))
            assert load_basis_head(client.state_directory / "basis", "content") is None
            head = load_head(client.models_directory)
            assert head is not None and head.basis and not head.content
        runs = [RunHistoryOut.model_validate(await running.history(f"run-{number}")) for number in (1, 2, 3)]
        facts = {fact.label: fact for fact in operator_overview(runs[-1], (), url="http://x/", runs=runs).facts}
        assert facts["Common items"].value == "made" and facts["Content sums"].value == "not made"
        assert FEW in facts["Content sums"].note
        status = StatusOut.model_validate(await read(running.silos["client-1"], "status"))
        shown = build_silo_overview(
            status, QualityOut(client="client-1"), Summary(0, 0, None, (), ()), {}, declared=SUMS
        ).facts
        assert ("Content sums", "not opened") in [(fact.label, fact.value) for fact in shown]
