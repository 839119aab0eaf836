"""Broadcasts and client memory last over rounds and restarts, with services and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from client_service.boundary.ledger import Ledger
from client_service.federation.training_run import TrainingRun
from simulation.engines.host import SiloReply, Verb
from simulation.engines.rounds import RunPlan, execute_runs
from simulation.engines.sequential import run_sequentially
from simulation.engines.silo import SiloRun
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.in_process import simulate_experiment
from tests.support import drifting

Described = Callable[..., Experiment]
Found = Callable[..., Any]


@pytest.fixture
def described(experiment: Described, monkeypatch: pytest.MonkeyPatch) -> Described:
    drifting.register_drifting(monkeypatch)
    return lambda name: replace(experiment(name, strategy=drifting.NAME), rounds=3)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, list[float]]]:
    """What each client remembers after each round, in the order in which they kept it."""
    found, complete = [], TrainingRun._complete_round

    def note(run: TrainingRun, number: int) -> None:
        found.append({name: value.tolist() for name, value in run._tensors.memory.items()})
        complete(run, number)

    monkeypatch.setattr(TrainingRun, "_complete_round", note)
    return found


def test_both_reach_every_round_with_services_and_without(
    described: Described, found: Found, kept: list[Mapping[str, list[float]]]
) -> None:
    there = simulate_experiment(described("services"), ignore_progress)
    remembered = sorted(str(one) for one in kept)
    assert remembered == sorted([str({})] * 2 + [str({"own.rounds": [n, n]}) for n in (1.0, 2.0, 3.0) for _ in "ab"])
    kept.clear()
    here = run_sequentially(described("plain"), ignore_progress)
    assert found(here) == found(there) and sorted(str(one) for one in kept) == remembered


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    described: Described, found: Found, interrupt: Any
) -> None:
    whole, broken = run_sequentially(described("whole"), ignore_progress), described("broken")
    for after in (4, 5, 6):  # steps of each process; the third ends in the last round
        with pytest.raises(KeyboardInterrupt):
            run_sequentially(broken, interrupt(after))
    assert found(run_sequentially(broken, ignore_progress)) == found(whole)


def test_without_its_memory_a_client_ends_elsewhere(
    described: Described, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests above: what they compare depends on the memory."""
    whole = run_sequentially(described("whole"), ignore_progress)
    complete = TrainingRun._complete_round

    def forget(run: TrainingRun, number: int) -> None:
        run._tensors.memory = {}
        complete(run, number)

    monkeypatch.setattr(TrainingRun, "_complete_round", forget)
    assert found(run_sequentially(described("forgetful"), ignore_progress)) != found(whole)


def test_masked_sums_broadcast_too_and_nothing_of_the_memory_leaves(described: Described, silos: Any) -> None:
    shards = silos(3)
    open_run, secure = (replace(described(name), shards=shards, secure=name == "secure") for name in ("open", "secure"))
    for one in (open_run, secure):
        outcome = simulate_experiment(one, ignore_progress)
        assert len({status.shared_digest for status in outcome.statuses.values()}) == 1
        for shard in one.shards:
            [ledger] = one.state_folder(shard).glob("ledger.jsonl")
            updates = [entry for entry in Ledger(ledger).entries() if entry.get("call") == "update"]
            names = {tensor["name"] for entry in updates for tensor in entry["tensors"]}
            assert drifting.SAID.name in names and not names & {drifting.TOLD.name, drifting.ROUNDS.name}


class ForgetfulCrew:
    """Silos of which each verb reaches another process, as with Flower: the training of a round is kept in between."""

    def __init__(self, experiment: Experiment) -> None:
        self._settings = {shard.name: experiment.make_silo_settings(shard) for shard in experiment.shards}
        self._begun: dict[str, tuple[Any, ...]] = {}
        self._sent: dict[str, Any] = {}
        self.digests: dict[str, str] = {}

    def call(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        for name, arguments in each.items():
            silo = SiloRun(self._settings[name])
            if verb == "begin":
                self._begun[name] = arguments
                yield SiloReply(name, silo.begin(*arguments))
                continue
            terms, start, _ = self._begun[name]
            silo.begin(terms, start, arguments[0] - 1 if arguments else terms.request.rounds)
            if verb == "apply":
                silo.resume_fitted(self._sent[name])
            value = getattr(silo, verb)(*arguments)
            if verb == "fit":
                self._sent[name] = silo.save_fitted(*arguments)
            self.digests[name] = silo.status.shared_digest or ""
            yield SiloReply(name, value)


def test_a_round_that_one_process_fits_and_another_applies_keeps_the_memory(described: Described) -> None:
    one, other = described("one"), described("other")
    whole = run_sequentially(one, ignore_progress)
    workers = ForgetfulCrew(other)
    execute_runs(RunPlan(other.folder, other.strategy, other.names, other.run_request()), workers)
    assert workers.digests == {name: status.shared_digest for name, status in whole.statuses.items()}
