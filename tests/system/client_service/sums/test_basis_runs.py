"""Basis runs through the services: what they sum, who holds the basis afterwards, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from client_service.settings import ClientSettings
from client_service.sums.basis import CommonBasis
from client_service.sums.statistics import catalogue_matrix
from client_service.sums.storage import BasisHead, load_basis, load_basis_head
from client_service.tasks.items import load_listed_shard
from shared.errors import DataError, PrivacyError
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import simulate_experiment
from tests.support.clock import LeapingClock
from tests.support.federation import Federation, run_federation
from tests.support.given import Silos
from tests.support.mortal import Killer, on_the_line
from tests.support.questions import read, wait_until

pytestmark = pytest.mark.anyio
Described = Callable[..., Experiment]
KINDS = {
    "exact": {"kind": "exact", "least_pairs": 1},
    "iterated": {"kind": "iterated", "rank": 5, "rounds": 3},
    "packed": {"kind": "iterated", "rank": 5, "rounds": 3, "words": 2},
}


@pytest.fixture
def described(silos: Silos, small: Any, tmp_path: Path) -> Described:
    def describe(kind: str, *, secure: bool = True, name: str = "run", count: int = 4) -> Experiment:
        basis = small.basis.model_copy(update=KINDS[kind])
        method = small.model_copy(update={"basis": basis})
        one = Experiment(silos(count), tmp_path / name, method, rounds=1, seed=5, device="cpu")
        return replace(one, secure=secure)

    return describe


Entered = Callable[..., AbstractAsyncContextManager[Federation]]


@pytest.fixture
def entered(impatient: None, clock: LeapingClock) -> Entered:
    """`async with entered(experiment, absent=1) as running`: all but the first so many clients, and a basis run."""
    del impatient

    @asynccontextmanager
    async def enter(one: Experiment, *, absent: int = 1, **request: Any) -> AsyncIterator[Federation]:
        clients = [one.make_client_settings(shard, aggregator_url="http://127.0.0.1") for shard in one.shards]
        async with run_federation(one.make_aggregator_settings(), clients, clock) as running:
            await running.enter(*clients[absent:])
            await running.start(**one.run_request().model_dump(mode="json") | {"part": "basis"} | request)
            yield running

    return enter


def head_of(settings: ClientSettings) -> BasisHead | None:
    return load_basis_head(settings.state_directory / "basis")


def require_taken_over(clients: Sequence[ClientSettings]) -> None:
    """All have the same basis of the first run, to which all but the first client have added their part."""
    heads = [head for each in clients if (head := head_of(each)) is not None]
    assert {head.run for head in heads} == {"run-1"} and len({head.digest for head in heads}) == 1
    assert [head.included for head in heads] == [False] + [True] * (len(clients) - 1)


def basis_of(settings: ClientSettings) -> CommonBasis:
    head = head_of(settings)
    assert head is not None
    found = load_basis(settings.state_directory / "basis", head.digest)
    assert found is not None
    return found


async def all_hold(*clients: ClientSettings) -> None:
    async def hold() -> bool:
        return all(head_of(one) is not None for one in clients)

    await wait_until(hold)


async def ended(running: Federation, run: str = "run-1") -> dict[str, Any]:
    """The history of a run that the aggregator has nothing more to do with."""

    async def over() -> bool:
        return (await running.history(run))["phase"] in ("finished", "failed")

    await wait_until(over)
    return await running.history(run)


def pooled(one: Experiment) -> sparse.csr_array:
    return pooled_of(one, [one.make_client_settings(shard, aggregator_url="http://127.0.0.1") for shard in one.shards])


def pooled_of(one: Experiment, settings: Sequence[ClientSettings]) -> sparse.csr_array:
    size = one.agreed_method.catalogue
    return sparse.csr_array(sparse.vstack([catalogue_matrix(load_listed_shard(each), size) for each in settings]))


@pytest.mark.parametrize("kind", ["exact", pytest.param("iterated", marks=pytest.mark.slow), "packed"])
def test_masked_sums_are_the_open_ones(described: Described, kind: str) -> None:
    found = []
    for secure in (True, False):
        one = described(kind, secure=secure, name=f"secure-{secure}")
        simulate_experiment(one, lambda _: None)
        heads = {load_basis_head(one.state_folder(shard) / "basis") for shard in one.shards}
        assert len(heads) == 1
        found.append(heads.pop())
    assert found[0] == found[1] and found[0] is not None and found[0].run == "run-1"


def test_exact_sums_are_those_of_the_pooled_data_to_the_digit(described: Described) -> None:
    one = described("exact")
    simulate_experiment(one, lambda _: None)
    folder, matrix = one.state_folder(one.shards[0]) / "basis", pooled(one)
    head = load_basis_head(folder)
    assert head is not None
    basis = load_basis(folder, head.digest)
    assert basis is not None and basis.pairs is not None
    np.testing.assert_array_equal(basis.pairs, (matrix.T @ matrix).toarray())


def test_silos_that_share_a_part_of_their_items_sum_that_part(described: Described) -> None:
    one = described("exact")
    listed = one.folder / "shared.txt"
    listed.parent.mkdir(parents=True)
    listed.write_text("".join(f"item-{item:02d}\n" for item in range(3, 9)))
    one.__dict__["catalogue"] = listed  # in place of the list of all items
    found = simulate_experiment(one, lambda _: None)
    matrix, folder = pooled(one), one.state_folder(one.shards[0]) / "basis"
    head = load_basis_head(folder)
    assert head is not None and matrix.shape[1] == 6
    basis = load_basis(folder, head.digest)
    assert basis is not None and basis.pairs is not None
    np.testing.assert_array_equal(basis.pairs, (matrix.T @ matrix).toarray())
    assert all(quality.finished for quality in found.qualities.values())


def test_a_catalogue_without_any_of_a_silos_items_is_refused(described: Described) -> None:
    one = described("exact")
    listed = one.folder / "shared.txt"
    listed.parent.mkdir(parents=True)
    listed.write_text("something else\nand more\n")
    one.__dict__["catalogue"] = listed
    settings = one.make_client_settings(one.shards[0], aggregator_url="http://127.0.0.1")
    with pytest.raises(DataError, match="expected some items of the shard, 12 are not listed"):
        load_listed_shard(settings)


@pytest.mark.parametrize(("field", "own"), [("least_pairs", 3), ("least_silos", 4)])
async def test_a_run_that_hands_out_more_than_a_silos_settings_allow_gets_nothing_of_it(
    described: Described, entered: Entered, field: str, own: int
) -> None:
    """Both are settings of a run, which the aggregator's operator asks for; they change nothing that is declared."""
    one = described("exact")
    async with entered(one) as running:
        careful = one.make_client_settings(one.shards[0], aggregator_url="http://127.0.0.1")
        basis = careful.method.basis.model_copy(update={field: own})
        method = careful.method.model_copy(update={"basis": basis})
        await running.enter(careful.model_copy(update={"method": method}))

        async def refused() -> bool:
            problem = (await read(running.silos["client-1"], "status")).get("problem") or ""
            return f"basis.{field} = {own} or more" in problem

        await wait_until(refused)


async def test_the_others_sum_without_a_client_that_stays_away(
    described: Described, entered: Entered, clock: LeapingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = described("exact")
    async with entered(one, quorum=3) as running:
        place = "PUT /v1/runs/run-1/rounds/1/clients/client-1/update"
        await Killer(monkeypatch).kill(running, running.clients[0], on_the_line(place))

        async def alone() -> bool:
            [now] = (await running.history())["rounds"]
            return bool(now["secure"] and now["secure"]["waiting_for"] == ["client-1"])

        await wait_until(alone)
        clock.ahead += one.run_request().deadline_seconds
        history = await ended(running)
        assert (history["phase"], history["rounds"][0]["missing"]) == ("finished", ["client-1"])
        await all_hold(*running.clients[1:])
        basis, others = basis_of(running.clients[1]), pooled_of(one, running.clients[1:])
        assert basis.pairs is not None
        np.testing.assert_array_equal(basis.pairs, (others.T @ others).toarray())


CALLS = ("PUT keys", "PUT shares", "PUT update", "PUT consents", "PUT answers", "GET personalized")


@pytest.mark.parametrize(
    ("kind", "number", "call", "answered"),
    [
        pytest.param(kind, number, call, answered, marks=() if call == "PUT update" and answered else pytest.mark.slow)
        for kind, number in (("exact", 1), ("iterated", 2), ("iterated", 3), ("packed", 3))
        for call in CALLS
        for answered in (False, True)
    ],
)
async def test_a_client_that_was_killed_ends_with_the_basis_of_all(
    described: Described,
    entered: Entered,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    number: int,
    call: str,
    answered: bool,
) -> None:
    one = described(kind)
    async with entered(one) as running:
        method, name = call.split()
        place = f"/v1/runs/run-1/rounds/{number}/clients/client-1"
        again = await Killer(monkeypatch).kill(
            running, running.clients[0], on_the_line(f"{method} {place}/{name}", answered=answered)
        )
        await running.enter(again)
        history = await ended(running)
        assert (history["phase"], [one["missing"] for one in history["rounds"]]) == ("finished", [[]] * number_of(kind))
        await all_hold(again, *running.clients[1:])
        assert {head_of(each) for each in (again, *running.clients[1:])} == {head_of(again)}


def number_of(kind: str) -> int:
    return 1 if kind == "exact" else 3


@pytest.mark.parametrize("kind", list(KINDS))
async def test_who_was_not_there_gets_the_basis_when_it_trains(
    described: Described, entered: Entered, kind: str
) -> None:
    one = described(kind)
    async with entered(one, clients=3) as running:
        await ended(running)
        await running.enter(running.clients[0])
        await running.start(**one.run_request().model_dump(mode="json"))
        await all_hold(*running.clients)
        require_taken_over(running.clients)
        assert (await ended(running, "run-2"))["phase"] == "finished"


async def test_a_training_run_with_a_basis_waits_for_a_basis_run(described: Described, entered: Entered) -> None:
    one = described("exact")
    request = one.run_request().model_dump(mode="json")
    async with entered(one, absent=0) as running:
        await ended(running)
        other = {**request["method"], "basis": {"kind": "exact", "least_pairs": 7}}
        answer = await running.operator.post("/v1/runs", json={**request, "method": other})
        assert answer.status_code == 422
        assert "start a run with part = basis first" in answer.json()["detail"]
        answer = await running.operator.post("/v1/runs", json={**request, "basis": "run-9"})
        assert "basis: expected run-1" in answer.json()["detail"]
        answer = await running.operator.post("/v1/runs", json=request)
        assert answer.status_code == 201 and answer.json()["request"]["basis"] == "run-1"


async def test_a_federation_with_a_basis_may_train_without_it(described: Described, entered: Entered) -> None:
    one = described("exact")
    request = one.run_request().model_dump(mode="json")
    strict = {**request, "method": {**request["method"], "basis": {"kind": "off"}}}
    async with entered(one, absent=0) as running:
        await ended(running)
        answer = await running.operator.post("/v1/runs", json={**strict, "part": "basis"})
        assert "method.basis.kind: expected 'exact' or 'iterated'" in answer.json()["detail"]
        await running.start(**strict)
        assert (await ended(running, "run-2"))["phase"] == "finished"


@pytest.mark.parametrize(
    ("secure", "allowed"), [(True, "no"), (False, "no"), (False, "secure")], ids=["secure", "open", "masked alone"]
)
def test_a_silo_that_has_not_agreed_sends_no_statistics(described: Described, secure: bool, allowed: str) -> None:
    one = described("exact", secure=secure)
    settings = one.make_client_settings(one.shards[0], aggregator_url="http://127.0.0.1")
    policy = settings.policy.model_copy(update={"common_basis": allowed})
    with pytest.raises(PrivacyError, match="policy: expected common_basis"):
        settings.model_copy(update={"policy": policy}).declaration()


@pytest.mark.parametrize("kind", ["iterated", "packed"])
async def test_the_sums_of_the_newest_basis_run_outlive_the_retention_time(
    described: Described, entered: Entered, kind: str
) -> None:
    one = described(kind)
    request = one.run_request().model_dump(mode="json")
    strict = {**request, "rounds": 4, "clients": 3, "method": {**request["method"], "basis": {"kind": "off"}}}
    async with entered(one, clients=3) as running:
        await ended(running)
        await running.start(**strict)
        await ended(running, "run-2")
        await running.enter(running.clients[0])
        await running.start(**request)
        await all_hold(*running.clients)
        require_taken_over(running.clients)
