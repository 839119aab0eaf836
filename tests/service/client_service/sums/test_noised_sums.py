"""Sums of the common basis with the differential privacy of a user: what a user changes, what noise a sum has, what it
costs, and what silos make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from client_service.boundary.ledger_heads import LedgerHeads
from client_service.privacy.accounting import Charge, epsilon
from client_service.privacy.basis_guard import ACCOUNT, BasisGuard, noise_deviation
from client_service.sums.basis import make_noised_basis, symmetric_matrix
from client_service.sums.statistics import weigh_pairs
from client_service.sums.storage import load_basis_head
from shared.errors import PrivacyError, SettingsError
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.settings import BasisSettings, MethodSettings
from shared.protocol.secure.messages import CommonTerms, RoundTerms
from shared.protocol.signing.keys import new_key
from shared.strategies.sum_strategy import sum_strategy
from shared.sums.item_basis import NOISE, WEIGHTED, entry_deviations
from shared.sums.sum import decode_fixed
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import open_federation, simulate_experiment
from tests.support.clock import LeapingClock
from tests.support.federation import run_federation
from tests.support.given import Silos
from tests.support.misled import ending_of, start
from tests.support.mortal import Killer, on_the_line
from tests.support.questions import read, wait_until

ITEMS, DELTA = 40, 1e-5
NOISED = MethodSettings(catalogue=ITEMS, basis=BasisSettings(kind="exact", epsilon=8.0, delta=DELTA))
KEY = new_key()


@pytest.fixture(scope="module")
def interactions() -> sparse.csr_array:
    generator = np.random.default_rng(5)
    popularity = 0.8 / np.arange(1, ITEMS + 1) ** 0.4
    return sparse.csr_array((generator.random((200, ITEMS)) < popularity).astype(float))


def matrix_of(sums: dict[str, Any]) -> np.ndarray[Any, Any]:
    return symmetric_matrix(decode_fixed(sums[WEIGHTED]), ITEMS)


def terms(run: str = "run-1", threshold: int = 5) -> RoundTerms:
    told = dict.fromkeys(("aggregator", "start", "method", "anchor"), "0a" * 32)
    place = {"run": run, "round": 1, "threshold": threshold}
    return RoundTerms(**place, declaration=declared("exact"), common=CommonTerms(**told, seed=0, rounds=1))


def declared(kind: str) -> Declaration:
    method = MethodSettings(catalogue=ITEMS, basis=BasisSettings(kind=kind, rank=3, epsilon=8.0))
    return sum_strategy(method).declaration(method)


def guard(folder: Path, budget: float = 8.0) -> BasisGuard:
    folder.mkdir(exist_ok=True)
    heads = LedgerHeads(folder, KEY)
    found = BasisGuard(heads, budget, DELTA)
    heads.save()
    return found


def test_a_user_changes_the_sum_by_a_norm_of_one_at_most_however_many_items_it_has(
    interactions: sparse.csr_array,
) -> None:
    everybody = matrix_of(weigh_pairs(interactions))
    for user in range(50):
        others = sparse.csr_array(sparse.vstack([interactions[:user], interactions[user + 1 :]]))
        assert 0.99 < np.linalg.norm(everybody - matrix_of(weigh_pairs(others))) <= 1.0
    counts = interactions.sum(axis=1)
    np.testing.assert_allclose(
        everybody, (interactions.T @ (interactions / counts[:, None])).toarray(), atol=200 / 65536
    )
    np.testing.assert_allclose(everybody.sum(axis=1), interactions.sum(axis=0), atol=0.2)  # the degrees of items


def test_what_the_noise_hides_in_the_diagonal_and_beside_it_is_one_norm() -> None:
    """In deviations of its entry, a change of the matrix is as far as its Frobenius norm, both halves counted."""
    change = np.random.default_rng(0).standard_normal((ITEMS, ITEMS))
    change = change + change.T
    upper = change[np.triu_indices(ITEMS)]
    assert np.linalg.norm(upper / entry_deviations(upper.size, 2.0)) == pytest.approx(np.linalg.norm(change) / 2.0)


@pytest.mark.parametrize("wanted", [1.0, 3.0, 8.0])
def test_the_noise_spends_what_was_asked_for(wanted: float) -> None:
    assert epsilon([Charge("gaussian", noise_deviation(wanted, DELTA))], DELTA) == pytest.approx(wanted, rel=1e-4)


def test_every_sum_that_can_be_uncovered_has_the_noise_beside_that_of_any_silo_in_it(
    tmp_path: Path, interactions: sparse.csr_array
) -> None:
    update, needed = Parameters(weigh_pairs(interactions)), noise_deviation(8.0, DELTA) ** 2
    parts = [guard(tmp_path / str(silo)).release(update, terms(), NOISED).arrays for silo in range(5)]
    drawn = [decode_fixed(part[WEIGHTED]) - decode_fixed(update.arrays[WEIGHTED]) for part in parts]
    said = [float(decode_fixed(part[NOISE])[0]) for part in parts]
    assert needed <= sum(said[1:]) < needed * 1.01
    others = np.sum(drawn[1:], axis=0) / entry_deviations(drawn[0].size, 1.0)
    assert np.var(others) == pytest.approx(needed, rel=0.2)
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.15  # each silo's follows from a secret of its own


def test_a_part_that_is_asked_for_again_is_the_same_and_a_second_sum_beyond_the_budget_is_refused(
    tmp_path: Path, interactions: sparse.csr_array
) -> None:
    update = Parameters(weigh_pairs(interactions))
    first = guard(tmp_path).release(update, terms(), NOISED)
    again = guard(tmp_path)  # after a restart
    assert again.release(update, terms(), NOISED).arrays[WEIGHTED].tobytes() == first.arrays[WEIGHTED].tobytes()
    assert again.permit()["epsilon"] == pytest.approx(8.0, rel=1e-4)
    with pytest.raises(PrivacyError, match=r"policy.basis_budget = 8 at delta 1e-05, got epsilon 1\d.*; 8 is spent"):
        again.release(update, terms("run-2"), NOISED)
    changed = Parameters(weigh_pairs(interactions[1:]))
    with pytest.raises(PrivacyError, match="basis_budget"):  # most of its users are those that were in the first sum
        again.release(changed, terms(), NOISED)
    larger = guard(tmp_path, budget=20.0).release(update, terms("run-2"), NOISED)
    assert larger.arrays[WEIGHTED].tobytes() != first.arrays[WEIGHTED].tobytes()


def test_nothing_leaves_without_a_release(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="without a release"):
        guard(tmp_path).permit()


def test_what_stands_out_of_the_noise_comes_back_and_nothing_else() -> None:
    items, variance, generator = 400, 0.25, np.random.default_rng(1)
    vectors = np.linalg.qr(generator.standard_normal((items, 3)))[0]
    edge = np.sqrt(2 * items * variance)
    true = np.array([6.0, 3.0, 0.2]) * edge
    upper = ((vectors * true) @ vectors.T)[np.triu_indices(items)]
    noise = generator.standard_normal(upper.size) * entry_deviations(upper.size, np.sqrt(variance))
    sums = {NOISE: np.array([round(variance * 65536)], np.uint32)}
    sums[WEIGHTED] = np.rint((upper + noise) * 65536).astype(np.int64).astype(np.uint32)
    basis = make_noised_basis(sums, items, 50)
    assert basis.values is not None and basis.vectors is not None
    np.testing.assert_allclose(basis.values, true[:2], rtol=0.03)
    assert (np.abs((basis.vectors * vectors[:, :2]).sum(axis=0)) > 0.97).all()
    assert basis.digest == make_noised_basis(sums, items, 50).digest


def test_noise_is_of_the_exact_kind_alone() -> None:
    with pytest.raises(SettingsError, match=r"basis\.epsilon: expected none with basis.kind = 'iterated'"):
        declared("iterated")


@pytest.fixture
def noised(silos: Silos, small: Any, tmp_path: Path) -> Callable[..., Experiment]:
    def describe(*, secure: bool = True) -> Experiment:
        method = small.model_copy(update={"basis": NOISED.basis})
        one = Experiment(silos(4), tmp_path / "run", method, rounds=1, seed=5, device="cpu")
        return replace(one, secure=secure)

    return describe


def test_all_silos_hold_one_noised_basis_and_their_ledgers_tell_what_it_cost(noised: Callable[..., Experiment]) -> None:
    one = noised()
    simulate_experiment(one, lambda _: None)
    assert len({load_basis_head(one.state_folder(shard) / "basis") for shard in one.shards}) == 1
    for shard in one.shards:
        lines = (one.state_folder(shard) / "ledger.jsonl").read_text().splitlines()
        [entry] = [json.loads(line) for line in lines if '"noise":' in line]
        assert entry["noise"]["epsilon"] == pytest.approx(8.0, rel=1e-4) and entry["noise"]["account"]["entries"] == 1
        assert [tensor["name"] for tensor in entry["tensors"]] == [NOISE, WEIGHTED]


@pytest.mark.anyio
async def test_a_second_noised_sum_is_refused_with_its_reason_once_the_budget_is_spent(
    noised: Callable[..., Experiment],
) -> None:
    one = noised()
    async with open_federation(one) as federation:
        assert (await start(federation, one, part="basis")).status_code == 201
        assert (await ending_of(federation, "run-1"))["reason"] is None
        assert (await start(federation, one, part="basis", seed=6)).status_code == 201

        async def refused() -> bool:
            said = [(await read(client, "status")).get("problem") or "" for client in federation.clients.values()]
            return all("policy.basis_budget = 8" in words for words in said)

        await wait_until(refused)


@pytest.mark.anyio
@pytest.mark.parametrize("answered", [False, True])
async def test_a_silo_that_was_killed_sends_the_same_part_and_is_charged_once(
    noised: Callable[..., Experiment],
    impatient: None,
    clock: LeapingClock,
    monkeypatch: pytest.MonkeyPatch,
    answered: bool,
) -> None:
    del impatient
    one = noised()
    clients = [one.make_client_settings(shard, aggregator_url="http://127.0.0.1") for shard in one.shards]
    async with run_federation(one.make_aggregator_settings(), clients, clock) as running:
        await running.enter(*clients[1:])
        await running.start(**one.run_request().model_dump(mode="json") | {"part": "basis"})
        place = "/v1/runs/run-1/rounds/1/clients/client-1/update"
        again = await Killer(monkeypatch).kill(
            running, running.clients[0], on_the_line(f"PUT {place}", answered=answered)
        )
        await running.enter(again)
        every = [again, *clients[1:]]

        async def all_hold() -> bool:
            return all(load_basis_head(one.state_directory / "basis") for one in every)

        await wait_until(all_hold)
    assert len({load_basis_head(one.state_directory / "basis") for one in every}) == 1
    assert len((again.state_directory / ACCOUNT).read_text().splitlines()) == 1


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0, 40.0])
def test_a_simulated_silo_agrees_to_noised_sums_alone_and_pays_for_one(
    noised: Callable[..., Experiment], interactions: sparse.csr_array, tmp_path: Path, epsilon: float
) -> None:
    basis = BasisSettings(kind="exact", epsilon=epsilon, delta=1e-6)
    one = noised()
    one = replace(one, method=one.method.model_copy(update={"basis": basis}))
    policy = one.make_client_settings(one.shards[0], aggregator_url="http://127.0.0.1").policy
    assert (policy.common_basis, policy.basis_budget, policy.basis_delta) == ("noised", epsilon, 1e-6)
    account = BasisGuard(LedgerHeads(tmp_path, KEY), policy.basis_budget, policy.basis_delta)
    update = Parameters(weigh_pairs(interactions))
    account.release(update, terms(), one.method)
    assert account.permit()["epsilon"] == pytest.approx(epsilon, rel=1e-4)
    with pytest.raises(PrivacyError, match=r"within policy\.basis_budget"):
        account.release(update, terms("run-2"), one.method)


def test_in_the_open_no_silo_sends_its_part_of_a_noised_sum(noised: Callable[..., Experiment]) -> None:
    one = noised(secure=False)
    settings = one.make_client_settings(one.shards[0], aggregator_url="http://127.0.0.1")
    with pytest.raises(PrivacyError, match=r"expected a secure federation with basis\.epsilon"):
        settings.declaration()
