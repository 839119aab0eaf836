"""A difference of two sums must not be one client.

Who: an honest aggregator, or whoever reads its states; nobody has to cheat. Draws followed from the seed, which
defaults to 0. Run-1 with four clients, run-2 with the same seed and one of them quarantined: 4 mean1 - 3 mean2 was the
fourth client's update, to 8.9e-8.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.numpy import load_file

from client_service.training_run import TrainingRun
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from simulation.experiment import Experiment
from simulation.federation import Federation
from simulation.run import in_process
from tests.attacks.liar import largest_difference

if TYPE_CHECKING:
    from conftest import Silos, Until

pytestmark = pytest.mark.anyio
VICTIM = "client-4"


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    """Every client's update of the first round, by run and client."""
    found, fit = {}, TrainingRun.fit

    def note(part: TrainingRun, *given: Any) -> Any:
        update, seconds = fit(part, *given)
        found[part.place.run, part.place.client] = update
        return update, seconds

    monkeypatch.setattr(TrainingRun, "fit", note)
    return found


def mean_of(folder: Path, run: str) -> dict[str, Float32]:
    """The aggregator's state after the first round."""
    with closing(sqlite3.connect(folder / "aggregator.sqlite")) as database:
        [(blob,)] = database.execute("select blob from states where run = ? and round = 1", [run]).fetchall()
    return load_file(folder / "blobs" / blob)


async def over(federation: Federation, run: str, until: Until) -> str:
    async def ended() -> bool:
        return (await federation.operator.get(f"/v1/runs/{run}")).json()["phase"] in ("finished", "failed")

    await until(ended)
    return str((await federation.operator.get(f"/v1/runs/{run}")).json()["reason"])


def described(silos: Silos, small: MethodSettings, folder: Path) -> Experiment:
    method = small.model_copy(update={"start": "random", "mlp_learning_rate": 0.01})
    return replace(Experiment(silos(4), folder, method, rounds=1, device="cpu"), secure=True)


Started = Callable[..., Any]


async def start(federation: Federation, one: Experiment, **changed: Any) -> Any:
    asked = one.request().model_copy(update=changed).model_dump(mode="json")
    return await federation.operator.post("/v1/runs", json=asked)


async def test_two_runs_from_one_start_are_summed_over_the_same_members_or_not_at_all(
    silos: Silos, small: MethodSettings, trained: dict[tuple[str, str], Any], until: Until, tmp_path: Path
) -> None:
    one = described(silos, small, tmp_path / "run")
    async with in_process(one) as federation:
        assert (await start(federation, one)).status_code == 201
        await over(federation, "run-1", until)
        shut = await federation.operator.post(f"/v1/clients/{VICTIM}/quarantine", json={"reason": "looked odd"})
        assert shut.status_code == 201
        again = await start(federation, one, clients=3)
        reason = "" if again.status_code != 201 else await over(federation, "run-2", until)
    state = one.folder / "aggregator"
    with closing(sqlite3.connect(state / "aggregator.sqlite")) as database:
        [(count,)] = database.execute("select count(*) from states where run = 'run-2'").fetchall()
    if count:  # as before
        first, second = mean_of(state, "run-1"), mean_of(state, "run-2")
        guess = {name: 4 * value - 3 * second[name] for name, value in first.items()}
        assert largest_difference(guess, trained["run-1", VICTIM].arrays) > 1e-3, "the victim's update lies bare"
    assert count == 0 and "another seed" in (reason or again.text)


async def test_another_seed_is_another_start_and_draws_follow_from_the_silo_too(
    silos: Silos, small: MethodSettings, trained: dict[tuple[str, str], Any], until: Until, tmp_path: Path
) -> None:
    one = described(silos, small, tmp_path / "run")
    async with in_process(one) as federation:
        for run, changed in (("run-1", {}), ("run-2", {}), ("run-3", {"seed": 1})):
            assert (await start(federation, one, **changed)).status_code == 201
            assert await over(federation, run, until) == "None"
    first, again = trained["run-1", VICTIM].arrays, trained["run-2", VICTIM].arrays
    assert largest_difference(first, again) > 1e-6  # the same start, the same seed, another run


async def test_who_leaves_alone_after_a_round_ends_the_run_and_is_not_told_by_difference(
    silos: Silos, small: MethodSettings, until: Until, tmp_path: Path
) -> None:
    """The neighbour of the hole within one run: updates of two rounds differ little once training settles."""
    one = described(silos, small, tmp_path / "run")
    async with in_process(one) as federation:
        assert (await start(federation, one, rounds=40)).status_code == 201

        async def first_sum() -> bool:
            return len((await federation.operator.get("/v1/runs/run-1")).json()["rounds"]) > 1

        await until(first_sum)
        shut = await federation.operator.post(f"/v1/clients/{VICTIM}/quarantine", json={"reason": "looked odd"})
        assert shut.status_code == 201
        reason = await over(federation, "run-1", until)
    assert f"would tell the update of {VICTIM}" in reason
