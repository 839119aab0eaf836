"""Silos find their common items by a masked sum of hashed ids, and sum a basis over them: nobody merges lists."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interaction_files import save_shard
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.settings import ClientSettings
from client_service.sums.basis import CommonBasis
from client_service.sums.common_items import CommonItems
from client_service.sums.item_sums import score_items
from client_service.sums.storage import load_basis, load_basis_head
from client_service.tasks.items import load_listed_shard
from shared.errors import PrivacyError
from shared.method.parameters import Parameters
from shared.method.settings import BasisSettings
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.protocol.signing.keys import raw_hex, read_public
from shared.sums.common_items import HELD
from simulation.experiments.experiment import Experiment
from tests.support.federation import Federation, run_federation
from tests.support.questions import read, wait_until

pytestmark = pytest.mark.anyio
OWN = {  # of each silo beside what all have; of two silos the decomposed and the composed spelling
    "client-1": ("Boot", "cafe\u0301", "only-1", "17"),
    "client-2": ("boot", "caf\u00e9", "Boot", "only-2"),
    "client-3": ("boot", "only-3", "17"),
    "client-4": ("only-4", "twice"),
}
EVERYWHERE = tuple(f"item-{number:02}" for number in range(10))
COMMON = {*EVERYWHERE, "Boot", "boot", "caf\u00e9", "17"}
SUMS = {
    "items": BasisSettings(kind="items", buckets=1 << 16),
    "basis_exact": BasisSettings(kind="exact", places=64, least_pairs=1),
    "basis_iterated": BasisSettings(kind="iterated", places=512, rank=4, words=4),
}


def write_silo(folder: Path, ids: tuple[str, ...], seed: int) -> Path:
    generator, shape = np.random.default_rng(seed), (16, len(ids))
    train = generator.random(shape) < 0.5
    train[0] = True  # somebody has each item
    held = generator.random((2, *shape)) < 0.3
    parts = [train, held[0] & ~train, held[1] & ~train & ~held[0]]
    matrices = [sparse.csr_array(part.astype(float)) for part in parts]
    users = [f"u{user:02}" for user in range(16)]
    save_shard(folder, build_shard_from_matrices(folder.name, users, sorted(ids), matrices))
    return folder


Federate = Callable[..., AbstractAsyncContextManager[tuple[Federation, list[ClientSettings]]]]


@pytest.fixture
def federate(tmp_path: Path, small: Any, impatient: None) -> Federate:
    """`async with federate(silos) as (running, clients)`: real services, secure, whose silos sum their list."""
    del impatient

    @asynccontextmanager
    async def start(
        silos: dict[str, tuple[str, ...]], **changed: Any
    ) -> AsyncIterator[tuple[Federation, list[ClientSettings]]]:
        shards = [write_silo(tmp_path / "shards" / name, ids, seed) for seed, (name, ids) in enumerate(silos.items())]
        method = small.model_copy(update={"sums": SUMS, "strategy": {"train": False}} | changed)
        one = replace(Experiment(tuple(shards), tmp_path / "run", method, rounds=1, device="cpu"), secure=True)
        one.__dict__["catalogue"] = None  # of the experiment, which would merge the silos' items
        clients = [one.make_client_settings(shard, aggregator_url="http://127.0.0.1") for shard in shards]
        async with run_federation(one.make_aggregator_settings(), clients) as running:
            yield running, clients

    return start


def with_all(**own: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {name: (*EVERYWHERE, *ids) for name, ids in (own or OWN).items()}


async def hold(running: Federation, run: str, **request: Any) -> dict[str, Any]:
    """A run, started by its part alone, and what the operator sees of it once it is over."""
    answer = await running.operator.post("/v1/runs", json={"clients": len(running.silos)} | request)
    assert answer.status_code == 201, answer.text

    async def over() -> bool:
        return (await running.history(run))["phase"] in ("finished", "failed")

    await wait_until(over)
    found = await running.history(run)
    assert found["phase"] == "finished", found
    return found


async def kept(settings: ClientSettings, part: str, run: str) -> Any:
    """What the silo has made of the sums of this run, once it has."""
    folder = settings.state_directory / "basis"

    async def there() -> bool:
        head = load_basis_head(folder, part)
        return head is not None and head.run == run

    await wait_until(there)
    head = load_basis_head(folder, part)
    assert head is not None
    return load_basis(folder, head.digest)


def places_of(known: CommonItems, settings: ClientSettings) -> dict[str, int]:
    shard = known.place(load_listed_shard(settings), 64).shard
    assert shard.places is not None
    return {name: int(place) for name, place in zip(shard.item_ids, shard.places, strict=True) if place >= 0}


def pooled_pairs(shards: list[Shard], known: CommonItems) -> NDArray[np.float32]:
    size = len(known.listed)
    whole = np.zeros((size, size))
    for shard in shards:
        placed = known.place(shard, 64).shard
        assert placed.places is not None
        columns = sparse.csr_array(shard.train[:, placed.places >= 0]).toarray()
        rows = placed.places[placed.places >= 0]
        whole[np.ix_(rows, rows)] += columns.T @ columns
    return whole.astype(np.float32)


async def test_the_list_is_the_intersection_and_the_basis_over_it_that_of_the_pooled_data(federate: Federate) -> None:
    async with federate(with_all()) as (running, clients):
        await running.enter(*clients)
        await hold(running, "run-1", part="items")
        lists = [await kept(one, "items", "run-1") for one in clients]
        assert len({known.digest for known in lists}) == 1
        pinned = raw_hex(
            read_public(ensure_key_pair("aggregator", clients[0].state_directory.parent / "aggregator").public)
        )
        assert {known.federation for known in lists} == {pinned}, "the aggregator cannot say another hash"
        shards = [load_listed_shard(one) for one in clients]
        assert lists[0].pairs_of_all[0] == sum(shard.train.nnz for shard in shards)
        spelled = {"cafe\u0301": "caf\u00e9"}
        for one, shard in zip(clients, shards, strict=True):
            found = places_of(lists[0], one)
            assert {spelled.get(name, name) for name in found} == {spelled.get(i, i) for i in shard.item_ids} & COMMON
        assert places_of(lists[0], clients[0])["cafe\u0301"] == places_of(lists[0], clients[1])["caf\u00e9"]

        few = {"clients": 4, "part": "basis", "method": {"basis": {"kind": "iterated"}}}
        refused = await running.operator.post("/v1/runs", json=few)
        assert refused.status_code == 422 and "expected as many common items as directions, 19" in refused.text
        other = {"clients": 4, "part": "basis", "method": {"basis": {"kind": "transitions"}}}
        assert "expected one of exact, iterated" in (await running.operator.post("/v1/runs", json=other)).text

        summed = await hold(running, "run-2", part="basis")
        asked = summed["request"]
        assert (asked["part"], asked["items"], asked["method"]["basis"]["kind"]) == ("basis_exact", "run-1", "exact")
        assert asked["why"].startswith("exact sums: 14 items") and asked["method"]["catalogue"] == 64
        bases = [await kept(one, "basis", "run-2") for one in clients]
        assert len({basis.digest for basis in bases}) == 1 and bases[0].pairs.shape == (14, 14)
        np.testing.assert_array_equal(bases[0].pairs, pooled_pairs(shards, lists[0]))

        trained = await hold(running, "run-3", rounds=1)
        assert trained["request"]["basis"] == "run-2" and trained["request"]["items"] == "run-1"

        async def judged() -> bool:
            told = [await read(http, "quality") for http in running.silos.values()]
            return all(one["run"] == "run-3" and one["finished"] for one in told)

        await wait_until(judged)
        assert await running.problems() == [""] * 4
        status = await read(running.silos["client-1"], "status")
        assert status["basis"]["run"] == "run-2" and status["basis"]["items"] == 14


async def test_a_silo_scores_as_with_a_list_that_everybody_has(federate: Federate) -> None:
    """Nothing is lost by the hashes: places differ, scores do not."""
    async with federate(with_all()) as (running, clients):
        await running.enter(*clients)
        await hold(running, "run-1", part="items")
        await hold(running, "run-2", part="basis")
        basis = await kept(clients[0], "basis", "run-2")
        shard = load_listed_shard(clients[0])
        listed = basis.items.place(shard, 64).shard
        plain = replace(basis, items=None)
        for ours, theirs in zip(score_items(basis, shard), score_items(plain, listed), strict=True):
            for name, value in vars(ours).items():
                np.testing.assert_array_equal(value, vars(theirs)[name])
        ids = replace(shard, item_ids=tuple(f"unknown {place}" for place in range(len(shard.item_ids))))
        assert (basis.place(ids).places == -1).all()


async def test_silos_without_a_common_item_sum_nothing_more(federate: Federate) -> None:
    silos = {f"client-{number}": tuple(f"{number}-{item}" for item in range(6)) for number in (1, 2, 3)}
    async with federate(silos) as (running, clients):
        await running.enter(*clients)
        early = await running.operator.post("/v1/runs", json={"clients": 3, "part": "basis"})
        assert early.status_code == 422 and "run of the part 'items' first" in early.text
        await hold(running, "run-1", part="items")
        for part in ("basis", "training"):
            basis = {"basis": SUMS["basis_exact"].model_dump()} if part == "training" else {}
            refused = await running.operator.post("/v1/runs", json={"clients": 3, "part": part, "method": basis})
            assert refused.status_code == 422, refused.text
            assert "expected items whose ids two silos or more have" in refused.text
            assert "lpsfed catalogue match" in refused.text
        known = await kept(clients[0], "items", "run-1")
        assert len(known.listed) == 0


async def test_a_silo_that_joins_late_has_the_list_and_the_basis_from_the_kept_sums(federate: Federate) -> None:
    async with federate(with_all()) as (running, clients):
        await running.enter(*clients[:3])
        await hold(running, "run-1", part="items")
        await hold(running, "run-2", part="basis")
        for one in clients[:3]:
            await kept(one, "basis", "run-2")
        await running.enter(clients[3])
        await hold(running, "run-3", rounds=1)
        late, known = await kept(clients[3], "basis", "run-2"), await kept(clients[0], "items", "run-1")
        assert (await kept(clients[3], "items", "run-1")).digest == known.digest
        assert late.digest == (await kept(clients[0], "basis", "run-2")).digest
        assert places_of(known, clients[3]).keys() == {*EVERYWHERE}


async def test_with_sums_alone_each_silo_makes_its_model_of_them_one_that_comes_late_too(federate: Federate) -> None:
    async with federate(with_all(), strategy={"train": False, "send": False}) as (running, clients):
        await running.enter(*clients[:3])
        await hold(running, "run-1", part="items")
        await hold(running, "run-2", part="basis")
        await running.enter(clients[3])

        async def judged() -> bool:
            told = [await read(http, "quality") for http in running.silos.values()]
            return all(one["run"] == "run-2" and one["finished"] for one in told)

        await wait_until(judged)
        assert (await kept(clients[3], "items", "run-1")).digest == (await kept(clients[0], "items", "run-1")).digest
        refused = await running.operator.post("/v1/runs", json={"clients": 4})
        assert "this federation shares sums alone and trains nothing" in refused.text


async def test_what_is_made_of_the_sums_costs_as_much_as_the_list_is_long(federate: Federate) -> None:
    """Not as much as it has places, of which a silo with little memory would have no room for the most."""
    sums = SUMS | {"basis_exact": BasisSettings(kind="exact", places=2048, least_pairs=1)}
    silos = with_all(**{name: OWN[name] for name in ("client-1", "client-2", "client-3")})
    async with federate(silos, strategy={"train": False, "send": False}, sums=sums) as (running, clients):
        small = [one.policy.model_copy(update={"most_memory_bytes": 250_000_000}) for one in clients]
        await running.enter(*(one.model_copy(update={"policy": own}) for one, own in zip(clients, small, strict=True)))
        await hold(running, "run-1", part="items")
        await hold(running, "run-2", part="basis")
        assert (await kept(clients[0], "basis", "run-2")).size == 14


async def test_the_list_of_a_basis_is_kept_as_long_as_the_basis_is(federate: Federate) -> None:
    """A newer list is there, and no basis over it yet: who comes late is served from the basis and from its list."""
    async with federate(with_all(), strategy={"train": False, "send": False}) as (running, clients):
        await running.enter(*clients[:3])
        await hold(running, "run-1", part="items")
        await hold(running, "run-2", part="basis")
        await hold(running, "run-3", part="items")
        await running.enter(clients[3])
        late = running.silos["client-4"]

        async def judged() -> bool:
            told = await read(late, "quality")
            return bool(told["run"] == "run-2" and told["finished"])

        await wait_until(judged)
        assert (await kept(clients[3], "basis", "run-2")).digest == (await kept(clients[0], "basis", "run-2")).digest


async def test_a_restart_between_list_and_basis_changes_nothing(federate: Federate) -> None:
    async with federate(with_all()) as (running, clients):
        async with AsyncExitStack() as running.stack:
            await running.enter(*clients)
            await hold(running, "run-1", part="items")
            before = [await kept(one, "items", "run-1") for one in clients]
        async with AsyncExitStack() as running.stack:
            await running.enter(*clients)
            await hold(running, "run-2", part="basis")
            await kept(clients[0], "basis", "run-2")
        basis = await kept(clients[0], "basis", "run-2")
        shards = [load_listed_shard(one) for one in clients]
        np.testing.assert_array_equal(basis.pairs, pooled_pairs(shards, before[0]))


async def test_an_aggregator_that_hands_one_silo_another_sum_gets_no_basis(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list would be another one, and its numbers would be read as other items'. Silos compare the lists."""
    from aggregator_service.aggregation import computation

    told = computation.client_answer

    def lie(strategy: Any, state: Any, client: str, *, summed: bool) -> Parameters:
        found = told(strategy, state, client, summed=summed)
        if client != "client-1" or HELD not in found.arrays:
            return found
        held = np.array(found.arrays[HELD])
        held[0, np.flatnonzero(held[0])[0]] = 0
        return Parameters({**found.arrays, HELD: held}, found.scalars)

    monkeypatch.setattr(computation, "client_answer", lie)
    async with federate(with_all()) as (running, clients):
        await running.enter(*clients)
        await hold(running, "run-1", part="items")
        for one in clients:
            await kept(one, "items", "run-1")
        answer = await running.operator.post("/v1/runs", json={"clients": 4, "part": "basis"})
        assert answer.status_code == 201

        async def failed() -> bool:
            return (await running.history("run-2"))["phase"] == "failed"

        await wait_until(failed)
        reason = (await running.history("run-2"))["reason"]
        assert "expected every silo to have the same list of items" in reason


async def test_no_list_is_summed_without_the_silos_word(federate: Federate) -> None:
    async with federate(with_all()) as (_, clients):
        policy = clients[0].policy.model_copy(update={"item_list": "no"})
        with pytest.raises(PrivacyError, match="policy: expected item_list = 'secure'"):
            clients[0].model_copy(update={"policy": policy}).declaration()


def test_a_basis_over_a_list_is_the_same_from_the_disk(tmp_path: Path) -> None:
    from client_service.sums.storage import save_basis

    numbers = np.arange(3, dtype=np.uint32)
    items = CommonItems("items", "ab" * 32, 1 << 12, numbers, numbers, np.array([9]))
    pairs = np.eye(5, dtype=np.float32)
    basis = CommonBasis("exact", 0.25, np.arange(5), pairs=pairs).over(items)
    assert basis.size == 3
    save_basis(tmp_path, "run-1", basis)
    found = load_basis(tmp_path, basis.digest)
    assert isinstance(found, CommonBasis) and found.items is not None and found.digest == basis.digest
    assert found.items.digest == items.digest
