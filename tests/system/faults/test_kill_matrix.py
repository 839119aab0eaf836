"""SIGKILL of either side in any moment of a round, and a supervisor's restart: the run ends as the undisturbed one.

Everything is real: processes, sockets, files. What is compared are digests: of every state of the aggregator, of every
update, of every client's parameters after each round, and of what it holds in the end. The undisturbed run is in one
process. `make faults` runs every cell and prints how long each took to recover.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from client_service.boundary.ledger import Ledger
from shared.files import PRIVATE, write_new
from shared.method.settings import MethodSettings, ServerStepSettings
from shared.protocol.schemas import RunHistoryOut
from shared.protocol.signing.keys import new_key, private_pem
from shared.timeouts import RETRY_SECONDS
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import simulate_experiment
from tests.system.faults.federation import LONGEST_SECONDS, Ending, endings_of
from tests.system.faults.points import AGGREGATOR, CLIENT, MOMENTS, RECOVERED, ROUND, Plan
from tests.system.faults.supervised import Supervised, supervised

if TYPE_CHECKING:
    from conftest import Silos

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
ROUNDS = 3  # one of the warm-up, the one that is hit, and one more
SECURE_DEADLINE_SECONDS = 1300.0  # of which a masked vector may take half
ALWAYS = {("after upload, before commit", AGGREGATOR), ("mid-upload", CLIENT)}  # the others are for `make faults`
KINDS = {
    "mean": ("none", False),
    "yogi": ("yogi", False),
    "ga, secure": ("ga", True),
    "adam": ("adam", False),
    "ga": ("ga", False),
    "adam, secure": ("adam", True),
    "yogi, secure": ("yogi", True),
}
"""What the state is made by: (server, secure). All but the first remember moments; secure ga sums masked magnitudes."""
OF_A_SECURE_ROUND = {"while training", "while aggregating", "while distributing"}
"""Moments that are the same there; its own six phases are killed in test_killed_in_a_round."""
STEPPED = {("while aggregating", AGGREGATOR)}
"""Of the kinds that differ by the arithmetic of their step alone."""


def is_cell(kind: str, moment: str, victim: str) -> bool:
    """Is this kind hit in this moment?"""
    if kind == "mean":
        return True
    return moment in OF_A_SECURE_ROUND if kind == "ga, secure" else (moment, victim) in STEPPED


CELLS = [
    pytest.param(
        kind,
        moment,
        victim,
        marks=() if (moment, victim) in ALWAYS and kind in ("mean", "yogi") else pytest.mark.slow,
    )
    for kind in KINDS
    for moment in MOMENTS
    for victim in (AGGREGATOR, CLIENT)
    if is_cell(kind, moment, victim)
]


@dataclass(frozen=True)
class Digests:
    """All that the run's seed fixes, wherever it lies. `personalised`: of the answers, by client and round."""

    states: dict[int, str]
    personalised: dict[str, dict[int, str]]
    endings: dict[str, Ending]


def digests(experiment: Experiment, history: RunHistoryOut, endings: dict[str, Ending]) -> Digests:
    assert history.phase == "finished", history.reason
    if experiment.secure:  # what was sent is masked, by new secrets in each run
        endings = {name: replace(ending, sent=()) for name, ending in endings.items()}
    answers = {shard.name: received(experiment.state_folder(shard)) for shard in experiment.shards}
    return Digests(dict(rows(experiment, "select round, digest from states")), answers, endings)


def rows(experiment: Experiment, query: str) -> list[tuple[int, str]]:
    file = experiment.folder / AGGREGATOR / "aggregator.sqlite"
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def received(state: Path) -> dict[int, str]:
    """The digest of what a client was answered for each round, by its ledger, which holds."""
    ledger = Ledger(state / "ledger.jsonl")
    assert ledger.verify() > 0
    rounds = {one["sequence"]: int(one["round"]) for one in ledger.entries() if one.get("call") == "personalized"}
    answers = [one for one in ledger.entries() if one.get("of") in rounds and one.get("status") == 200]
    found = {rounds[one["of"]]: one["sha256"] for one in answers}
    assert all(found[rounds[one["of"]]] == one["sha256"] for one in answers)  # asked again, answered the same
    return found


@pytest.fixture(scope="session")
def aggregator_key() -> bytes:
    """In a secure federation the draws of training follow from it: runs that are compared need the same."""
    return private_pem(new_key())


@pytest.fixture
def described(
    silos: Silos,
    small: MethodSettings,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    aggregator_key: bytes,
) -> Described:
    """Three clients whose shards are the same in every test; a round has several batches."""
    cache, method = tmp_path_factory.getbasetemp() / "kept-by-processes", small.model_copy(update={"batch_size": 24})
    shards = silos(3)

    def describe(name: str, kind: str) -> Experiment:
        server, secure = KINDS[kind]
        step = ServerStepSettings(magnitudes="reported" if secure and server == "ga" else None)
        stepped = method if server == "none" else method.model_copy(update={"server": server, "server_step": step})
        (tmp_path / name / AGGREGATOR).mkdir(parents=True)
        write_new(tmp_path / name / AGGREGATOR / "aggregator.key", aggregator_key, PRIVATE)
        one = Experiment(shards, tmp_path / name, stepped, rounds=ROUNDS, seed=7, device="cpu", cache=cache)
        return replace(one, secure=secure)

    return describe


Described = Callable[[str, str], Experiment]


@pytest.fixture(scope="session")
def remembered() -> dict[str, Digests]:
    """The undisturbed run's of each kind, once there has been one."""
    return {}


@pytest.fixture
async def undisturbed(described: Described, remembered: dict[str, Digests], kind: str) -> Digests:
    if kind not in remembered:
        experiment = described("undisturbed", kind)
        found = await anyio.to_thread.run_sync(simulate_experiment, experiment, lambda _: None)
        remembered[kind] = digests(experiment, found.history, endings_of(found))
    return remembered[kind]


@asynccontextmanager
async def lived(experiment: Experiment, plan: Plan | None = None) -> AsyncIterator[Supervised]:
    with anyio.fail_after(LONGEST_SECONDS):
        async with supervised(experiment, plan) as running:
            await running.begin(**({"deadline_seconds": SECURE_DEADLINE_SECONDS} if experiment.secure else {}))
            yield running


@pytest.mark.parametrize(("kind", "moment", "victim"), CELLS)
async def test_whoever_is_killed_whenever_the_run_ends_as_the_undisturbed_one(
    described: Described,
    undisturbed: Digests,
    record_property: Callable[[str, object], None],
    kind: str,
    moment: str,
    victim: str,
) -> None:
    experiment = described("disturbed", kind)
    plan = Plan(moment, victim, experiment.folder / "supervised")
    async with lived(experiment, plan) as running:
        seconds = await running.recovered()
        await running.finished()
        assert digests(experiment, await running.history(), await running.endings()) == undisturbed
        assert [name for name, _ in running.deaths] == [victim]
        require_lived_again(running, victim)
    require_no_remains(experiment)
    record_property(RECOVERED, [moment, victim, round(seconds, 2)])
    assert seconds < 3 * RETRY_SECONDS


def require_lived_again(running: Supervised, victim: str) -> None:
    """A client repeats the round from the checkpoint of its beginning if, and only if, it was killed."""
    events = [json.loads(line) for line in running.log(CLIENT).splitlines() if line.startswith("{")]
    resumed = [one["round"] for one in events if one["event"] == "training_resumed"]
    assert resumed == ([ROUND - 1] if victim == CLIENT else [])


def require_no_remains(experiment: Experiment) -> None:
    """Once all have ended: nothing half-written anywhere, and of the aggregator's files those that rows speak of."""
    assert [*experiment.folder.rglob("*.partial"), *experiment.folder.rglob("*.tmp")] == []
    held = rows(experiment, "select round, blob from updates union all select round, blob from states")
    files = sorted(file.name for file in (experiment.folder / AGGREGATOR / "blobs").iterdir())
    assert files == sorted(name for _, name in held if name is not None)
