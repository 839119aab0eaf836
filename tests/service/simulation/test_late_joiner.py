"""A silo that joins after a run of sums is served from what is kept of it, and its share is not told by a later one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_service.sums.basis import CommonBasis
from client_service.sums.statistics import catalogue_matrix, restrict_to_training
from client_service.sums.storage import load_basis, load_basis_head
from client_service.sums.transitions import Transitions, count_transitions, shard_transitions
from client_service.tasks import TASKS
from client_service.tasks.items import load_listed_shard
from shared.method.parameters import digest_arrays
from shared.method.settings import BasisSettings, MethodSettings, method_settings
from shared.sums.transitions import COUNTS
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome, admit_late_clients, execute_run, ignore_progress
from simulation.experiments.in_process import open_federation, simulate_experiment
from simulation.reports.report import build_report
from tests.support.misled import ending_of, start
from tests.support.questions import wait_until
from tests.support.small import SMALL
from tests.support.visits import write_session_shards

pytestmark = pytest.mark.anyio
KINDS = {
    "exact": BasisSettings(kind="exact"),
    "iterated": BasisSettings(kind="iterated", rank=8, rounds=2),
    "noised": BasisSettings(kind="exact", epsilon=8.0),
}


@pytest.fixture
def late_experiment(silos: Callable[[int], tuple[Path, ...]], tmp_path: Path) -> Callable[..., Experiment]:
    """Three silos sum, and a fourth joins later."""

    def describe(method: MethodSettings, **changed: object) -> Experiment:
        shards = silos(4)
        one = Experiment(shards, tmp_path / "run", method, rounds=1, device="cpu", secure=True, late=shards[-1:])
        return replace(one, **changed)  # type: ignore[arg-type]

    return describe


def kept_basis(one: Experiment, shard: Path) -> CommonBasis:
    folder = one.state_folder(shard) / "basis"
    head = load_basis_head(folder)
    found = None if head is None else load_basis(folder, head.digest)
    assert isinstance(found, CommonBasis)
    return found


def shared(kind: str) -> MethodSettings:
    return SMALL.model_copy(update={"basis": KINDS[kind], "strategy": {**SMALL.strategy, "train": False}})


async def join_later(one: Experiment) -> Outcome:
    async with open_federation(one) as federation:
        held = await execute_run(federation, one.run_request(), ignore_progress)
        assert one.late[0].name not in held.qualities
        return await admit_late_clients(federation, held, ignore_progress)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_late_silo_is_served_from_the_kept_sums_and_sends_nothing(
    late_experiment: Callable[..., Experiment], kind: str
) -> None:
    one = late_experiment(shared(kind))
    found = await join_later(one)
    [late], first = one.late, one.shards[0]
    quality, status = found.qualities[late.name], found.statuses[late.name]
    assert quality.run == found.history.run and quality.finished and quality.comparison is not None
    assert status.model is not None and status.basis is not None and not status.problem
    assert late.name not in {part.client for held in found.history.rounds for part in held.participants}
    assert all(entry.bytes_up == 0 for entry in quality.rounds)
    known, others = kept_basis(one, late), kept_basis(one, first)
    assert known.digest == others.digest and (known.included, others.included) == (False, True)


async def test_its_own_pairs_are_added_once_and_those_of_members_are_not(
    late_experiment: Callable[..., Experiment],
) -> None:
    """The sums of three silos with the fourth's pairs are the pairs of all four; a member's stay as they are."""
    basis = BasisSettings(kind="exact", least_pairs=1)
    one = late_experiment(shared("exact").model_copy(update={"basis": basis}))
    await join_later(one)
    items, total = one.agreed_method.catalogue, 0
    for shard in one.shards:
        own = load_listed_shard(one.make_silo_settings(shard))
        matrix = catalogue_matrix(own, items)
        total = total + (matrix.T @ matrix).toarray()
        known = kept_basis(one, shard)
        kept = restrict_to_training(known, own)
        if shard in one.late:
            np.testing.assert_array_equal(kept.pairs, total)
            np.testing.assert_array_equal(kept.degrees, np.diag(total))
        else:
            assert kept is known


async def test_a_late_silo_goes_on_from_what_the_run_has_trained(late_experiment: Callable[..., Experiment]) -> None:
    """It judges the start and the end of the run, and its networks are those that the run ended with."""
    one = late_experiment(SMALL.model_copy(update={"basis": KINDS["exact"]}), rounds=2)
    found = await join_later(one)
    quality, member = found.qualities[one.late[0].name], found.qualities[one.shards[0].name]
    assert [entry.round for entry in quality.rounds] == [0, 2]
    assert quality.shared_digest == member.shared_digest and quality.shared_digest != digest_arrays({})


async def test_the_difference_of_two_sums_does_not_tell_the_late_silo(
    late_experiment: Callable[..., Experiment],
) -> None:
    """With one newcomer the sum over all less the sum before is its very counts: no such sum is made."""
    one = late_experiment(shared("exact"))
    async with open_federation(one) as federation:
        held = await execute_run(federation, one.run_request(), ignore_progress)
        before = {shard: kept_basis(one, shard).digest for shard in one.initial_shards}
        await admit_late_clients(federation, held, ignore_progress)
        asked = await start(federation, one, part="basis", clients=4, seed=5)
        assert asked.status_code == 201, asked.text
        ended = await ending_of(federation, asked.json()["run"])
    assert ended["phase"] == "failed" and f"would tell of {one.late[0].name} alone" in ended["reason"]
    assert {shard: kept_basis(one, shard).digest for shard in one.initial_shards} == before


@pytest.mark.parametrize("send", [True, False])
async def test_a_sum_that_was_refused_does_not_keep_the_next_late_silo_from_the_kept_ones(
    late_experiment: Callable[..., Experiment], send: bool
) -> None:
    """The newest run has failed, or was cancelled; whoever joins after it is served from the one before."""
    method = shared("exact")
    method = method.model_copy(update={"strategy": {**method.strategy, "send": send}})
    one = late_experiment(method)
    async with open_federation(one) as federation:
        held = await execute_run(federation, one.run_request(), ignore_progress)
        asked = await start(federation, one, part="basis", clients=4, seed=5)
        cancelled = await federation.operator.delete(f"/v1/runs/{asked.json()['run']}")
        assert cancelled.json()["phase"] == "cancelled"
        found = await admit_late_clients(federation, held, ignore_progress)
    quality = found.qualities[one.late[0].name]
    assert quality.run == held.history.run and quality.finished and quality.comparison is not None
    assert found.statuses[one.late[0].name].basis is not None
    assert not found.statuses[one.late[0].name].basis.included


def test_the_report_says_which_silo_came_late(late_experiment: Callable[..., Experiment]) -> None:
    one = late_experiment(shared("exact"))
    report = build_report(one, simulate_experiment(one, ignore_progress))
    assert [row.get("late", False) for row in report["silos"]] == [False, False, False, True]


async def test_three_that_have_joined_since_enter_the_next_sum_together_and_are_counted_once(
    silos: Callable[[int], tuple[Path, ...]], tmp_path: Path
) -> None:
    shards = silos(6)
    basis = BasisSettings(kind="exact", least_pairs=1)
    method = shared("exact").model_copy(update={"basis": basis})
    one = Experiment(shards, tmp_path / "run", method, rounds=1, device="cpu", secure=True, late=shards[3:])
    async with open_federation(one) as federation:
        held = await execute_run(federation, one.run_request(), ignore_progress)
        await admit_late_clients(federation, held, ignore_progress)
        before = kept_basis(one, one.late[0])
        renewed = (await start(federation, one, part="basis", clients=6, seed=5)).json()["run"]
        assert (await ending_of(federation, renewed))["reason"] is None

        async def kept() -> bool:
            heads = [load_basis_head(one.state_folder(shard) / "basis") for shard in shards]
            return all(head is not None and head.run == renewed for head in heads)

        await wait_until(kept)
    assert not before.included
    total = 0
    for shard in shards:
        own = load_listed_shard(one.make_silo_settings(shard))
        matrix = catalogue_matrix(own, one.agreed_method.catalogue)
        total = total + (matrix.T @ matrix).toarray()
        known = kept_basis(one, shard)
        assert known.included and restrict_to_training(known, own) is known
    np.testing.assert_array_equal(kept_basis(one, shards[0]).pairs, total)


async def test_a_late_silo_of_visits_adds_its_own_transitions_to_the_kept_ones(tmp_path: Path) -> None:
    shards = tuple(write_session_shards(tmp_path / "shards", 4))
    taught = {"basis.kind": "transitions", "basis.least_pairs": 1}
    method = method_settings("sessions", width=8, batch_size=50, **taught)
    one = Experiment(shards, tmp_path / "run", method, "fedavg", "sessions", rounds=1, device="cpu", secure=True)
    one = replace(one, late=shards[-1:])
    found = await join_later(one)
    quality = found.qualities[shards[-1].name]
    assert quality.run == found.history.run and quality.finished and quality.comparison is not None
    read = TASKS["sessions"].read
    parts = [count_transitions(read(one.make_silo_settings(shard)), one.agreed_method)[COUNTS] for shard in shards]
    for shard, total in ((shards[-1], np.sum(parts, axis=0)), (shards[0], np.sum(parts[:-1], axis=0))):
        folder, own = one.state_folder(shard) / "basis", read(one.make_silo_settings(shard))
        head = load_basis_head(folder)
        known = None if head is None else load_basis(folder, head.digest)
        assert isinstance(known, Transitions) and known.included == (shard not in one.late)
        expected = total[np.ix_(own.places, own.places)]
        np.testing.assert_array_equal(shard_transitions(known, own).toarray(), expected)
