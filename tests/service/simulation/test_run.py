"""A federation in one process: the same seed gives the same parameters, and a failure is told with its reason."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import FederationError, UnavailableError
from shared.protocol.signing.enrolment import registered_keys
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation, Outcome, Progress, execute_run
from simulation.experiments.in_process import open_federation, simulate_experiment

Described = Callable[..., Experiment]


def digest(outcome: Outcome) -> str:
    """Of what all clients ended with."""
    parts = [outcome.statuses[name].shared_digest or "" for name in sorted(outcome.statuses)]
    assert all(len(part) == 64 for part in parts)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def test_the_same_seed_gives_the_same_digest_and_another_one_another(experiment: Described) -> None:
    first, again = (digest(simulate_experiment(experiment(name), lambda _: None)) for name in ("first", "again"))
    assert first == again
    assert digest(simulate_experiment(experiment("other", seed=1), lambda _: None)) != first


def test_a_run_leaves_its_history_its_quality_and_the_way_there(experiment: Described) -> None:
    shown: list[Progress] = []
    outcome = simulate_experiment(experiment("run", strategy="fedavg"), shown.append)
    assert (outcome.history.run, outcome.history.phase) == ("run-1", "finished")
    assert [[one.client for one in entry.participants] for entry in outcome.history.rounds] == [
        ["client-1", "client-2"],
        ["client-1", "client-2"],
    ]
    for quality in outcome.qualities.values():
        assert quality.finished and [entry.round for entry in quality.rounds] == [0, 1, 2]
        assert quality.test is not None and quality.rounds[1].bytes_up > 0
    assert {status.phase for status in outcome.statuses.values()} <= {"evaluating", "finished"}
    assert set(shown[0].statuses) == {"client-1", "client-2"} and shown[-1].rounds == 2
    assert 0 < shown[-1].seconds <= outcome.seconds


def test_the_clients_keys_are_their_own_and_registered_and_the_operator_s_token_is_drawn_anew(
    experiment: Described,
) -> None:
    one, two = experiment("one"), experiment("two")
    simulate_experiment(one, lambda _: None)
    keys = [one.state_folder(shard) / f"{shard.name}.key" for shard in one.shards]
    assert len({path.read_bytes() for path in keys}) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert list(registered_keys(one.registry)) == ["client-1", "client-2"]
    assert one.token != two.token and one.token not in repr(one)


@pytest.mark.anyio
async def test_a_run_that_fails_is_an_error_with_the_aggregator_s_reason(
    experiment: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = experiment("run")
    monkeypatch.setattr("aggregator_service.settings.require_deadline_above_body", lambda *_: None)
    async with open_federation(described) as federation:
        request = described.run_request().model_copy(update={"clients": 3, "deadline_seconds": 0.3})
        with pytest.raises(FederationError, match="of 3 clients had joined at the deadline"):
            await execute_run(federation, request, lambda _: None)


@pytest.mark.anyio
async def test_a_second_run_in_the_same_federation_is_waited_for_by_its_own_name(experiment: Described) -> None:
    described = experiment("run")
    async with open_federation(described) as federation:
        names = [(await execute_run(federation, described.run_request(), lambda _: None)).history.run for _ in range(2)]
    assert names == ["run-1", "run-2"]


@pytest.mark.anyio
async def test_another_operator_is_refused(experiment: Described) -> None:
    described = experiment("run")
    async with open_federation(described) as federation:
        federation.operator.headers["Authorization"] = "Bearer somebody-else-entirely"
        with pytest.raises(FederationError, match=r"POST /v1/runs: 401"):
            await execute_run(federation, described.run_request(), lambda _: None)


@pytest.mark.anyio
async def test_clients_that_never_finish_are_named_with_their_problem(
    experiment: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.experiments.federation.AFTERMATH_SECONDS", 0.3)
    monkeypatch.setattr("client_service.federation.training_run.TrainingRun.finish", lambda *_: None)
    described = experiment("run")
    async with open_federation(described) as federation:
        with pytest.raises(UnavailableError, match="expected the clients to finish their evaluation"):
            await execute_run(
                Federation(federation.operator, federation.clients), described.run_request(), lambda _: None
            )


def test_a_shard_that_cannot_be_read_is_named_at_once(experiment: Described, tmp_path: Path) -> None:
    described = experiment("run")
    (described.shards[1] / "interactions.parquet").write_bytes(b"nothing")
    with pytest.raises(FederationError, match=r"client-2/interactions\.parquet"):
        simulate_experiment(described, lambda _: None)
    assert not (tmp_path / "run" / "client-2" / "ledger.jsonl").exists()
