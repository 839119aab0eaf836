"""A run whose work the system kills this process in, three times, is refused, and the silo goes on serving.

Who: an aggregator whose settings take more memory than the estimate says, or a machine with less than it says. The
supervisor starts the silo again, which would take the same work up again, for ever, and answer nobody meanwhile.
"""

from __future__ import annotations

import os
import signal
import stat
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client_service.federation.killed_runs import MOST_DEATHS, NAME, KilledRuns
from client_service.federation.training_run import TrainingRun
from shared.errors import SettingsError
from tests.support.mortal import Killer, Mortal
from tests.support.questions import finished, has_problem, read

if TYPE_CHECKING:
    from tests.support.given import Federate, Until


def kill_a_process_amid(folder: Path, run: str, work: str) -> None:
    """As the system does: nothing of it is done after that, and no context is left."""
    child = os.fork()
    if child == 0:
        try:
            with KilledRuns(folder).guard(run, work):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)  # whatever goes wrong: this copy of the test run ends here
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_three_deaths_in_one_kind_of_work_of_a_run_are_enough(tmp_path: Path) -> None:
    for _ in range(MOST_DEATHS):
        with KilledRuns(tmp_path).guard("run-1", "preparing"):  # each process gets so far
            pass
        kill_a_process_amid(tmp_path, "run-1", "training")
    said, again = r"^run-1: expected .*\(training\), got 3 processes killed during it", KilledRuns(tmp_path)
    with pytest.raises(SettingsError, match=said), again.guard("run-1", "training"):
        raise AssertionError("begun")
    with KilledRuns(tmp_path).guard("run-1", "preparing"):
        pass
    with KilledRuns(tmp_path).guard("run-2", "training"):
        pass
    assert not (tmp_path / NAME).exists()


def test_work_that_ends_takes_its_mark_away(tmp_path: Path) -> None:
    for _ in range(MOST_DEATHS - 1):
        kill_a_process_amid(tmp_path, "run-1", "training")
    assert stat.S_ISREG((tmp_path / NAME).stat().st_mode)
    with KilledRuns(tmp_path).guard("run-1", "training"):
        pass
    for error in (MemoryError(), KeyboardInterrupt(), OSError()):
        with pytest.raises(type(error)), KilledRuns(tmp_path).guard("run-1", "training"):
            raise error
    for _ in range(MOST_DEATHS - 1):
        kill_a_process_amid(tmp_path, "run-1", "training")
    with KilledRuns(tmp_path).guard("run-1", "training"):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b'{"run": "run-1", "deaths": 3}'])
def test_a_file_that_cannot_be_read_counts_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with KilledRuns(tmp_path).guard("run-1", "training"):
        pass


@pytest.mark.anyio
async def test_a_silo_that_was_killed_three_times_in_training_refuses_the_run_and_takes_the_next(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(patched: pytest.MonkeyPatch, line: Mortal) -> None:
        fit = TrainingRun.fit

        @wraps(fit)
        def mortal(training: TrainingRun, *given: Any) -> Any:
            if training.place.client == line.settings.name:
                line.strike()
            return fit(training, *given)

        patched.setattr(TrainingRun, "fit", mortal)

    async with federation(2) as running:
        (settings, other), killer = running.clients, Killer(monkeypatch)
        await running.enter(other)
        await running.start()
        for _ in range(MOST_DEATHS):
            settings = await killer.kill(running, settings, strike)
        silo = (await running.enter(settings))[-1]
        await until(has_problem(silo, "run-1: expected its work to end (training)"))
        assert (await silo.get("/health/live")).status_code == 200
        await running.operator.delete("/v1/runs/run-1")
        await running.start()
        await until(finished(silo, run="run-2"))
        assert (await read(silo, "status")).get("problem") is None
