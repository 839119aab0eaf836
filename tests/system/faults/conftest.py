"""A federation of three small silos whose network a test can disturb, and how its run ends when nothing does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from shared.method.settings import MethodSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import simulate_experiment
from tests.support.cells import print_cells
from tests.system.faults.federation import Disturbed, Ending, disturbed, endings_of
from tests.system.faults.points import RECOVERED

if TYPE_CHECKING:
    from conftest import Silos

ROUNDS = 2
Federation = Callable[..., AbstractAsyncContextManager[Disturbed]]


@pytest.fixture
def three(silos: Silos, small: MethodSettings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Their shards are the same in every test: what follows from these is kept between tests."""
    cache = tmp_path_factory.getbasetemp() / "kept-spectra"
    return Experiment(silos(3), tmp_path / "run", small, rounds=ROUNDS, device="cpu", cache=cache)


@pytest.fixture
def federation(three: Experiment, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """`async with federation() as running`: aim the proxies, then `begin`. It may be given the aggregator's clock."""
    for name in ("PAUSE_SECONDS", "LONGEST_PAUSE_SECONDS", "LONG_PAUSE_SECONDS"):
        monkeypatch.setattr(f"client_service.boundary.retry_schedule.{name}", 0.05)
    return partial(disturbed, three)


@pytest.fixture(scope="session")
def endings() -> list[dict[str, Ending]]:
    """The undisturbed run's, once there has been one."""
    return []


@pytest.fixture
async def undisturbed(endings: list[dict[str, Ending]], three: Experiment, tmp_path: Path) -> dict[str, Ending]:
    """How the run ends at each client, in one process and without a network."""
    if not endings:
        apart = replace(three, folder=tmp_path / "undisturbed")
        found = await anyio.to_thread.run_sync(simulate_experiment, apart, lambda _: None)
        endings.append(endings_of(found))
    return endings[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    print_cells(terminalreporter, RECOVERED, "recovered after a kill, seconds")
