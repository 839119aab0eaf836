"""What commands that see more than one silo do with a task, as a record of functions beside the clients' own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from client_service.data import read_shard
from client_service.data.session_files import read_session_shard
from client_service.data.sessions import TEST, TRAIN
from client_service.serving.next_messages import NextIn
from shared.errors import SettingsError
from shared.method.settings import PRESET_ROUNDS, MethodSettings, Preset, method_settings
from shared.strategies import build_strategy
from simulation.experiments.blind import hide_test_pairs
from simulation.experiments.experiment import Experiment
from simulation.experiments.floors import Bounds, measure_bounds
from simulation.experiments.session_floors import measure_session_bounds
from simulation.partitioning.sources import CHAIN, Cut, Shards, cut_shards
from simulation.sessions.blind import hide_test_sessions
from simulation.sessions.source import CLICKS, cut_session_shards

SHOWN = 5  # items of an example


@dataclass(frozen=True)
class Example:
    """A request to a silo. path: with its query; body: of a POST, None for a GET. said: what the answer is for.
    choose: the list in the answer."""

    path: str
    said: str
    body: dict[str, Any] | None = None
    choose: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda answer: answer)


class MeasureBounds(Protocol):
    """What is around the trained model of an experiment."""

    def __call__(self, experiment: Experiment, *, shown: bool) -> Bounds: ...


@dataclass(frozen=True)
class SimulatedTask:
    """generated: the name of the data that a demonstration makes, and taught: the settings that fit them. strategy,
    preset: where none is asked for. digest: of a shard's content. hide_test: writes a shard anew without test data."""

    name: str
    generated: str
    taught: dict[str, Any]
    strategy: str
    preset: Preset
    has_basis: bool
    cut: Callable[[str, Cut, Path], Shards]
    measure_bounds: MeasureBounds
    find_example: Callable[[Path], Example]
    digest: Callable[[Path], str]
    hide_test: Callable[[Path, Path], None]

    def choose_method(self, preset: str | None, strategy: str, changes: dict[str, Any]) -> tuple[MethodSettings, int]:
        """The settings of a run, and how many rounds it has where nobody says it."""
        name = cast(Preset, self.preset if preset is None else str(preset))
        method = method_settings(name, **changes)
        return method, build_strategy(strategy, method).enough_rounds or PRESET_ROUNDS[name]


def find_user(shard: Path) -> Example:
    """A real user of the shard."""
    user = read_shard(shard).user_ids[0]
    return Example(f"/v1/users/{user}/recommendations?k={SHOWN}", f"For {user}")


def find_visit(shard: Path) -> Example:
    """The first clicks of a test session of the shard, or where it has none of a training session."""
    sessions = read_session_shard(shard)
    clicks, starts = sessions.split_sessions(TEST if (sessions.splits == TEST).any() else TRAIN)
    session = tuple(sessions.item_ids[row] for row in clicks[: max(1, starts[1] - 1)])
    body = NextIn(session=session, k=SHOWN).model_dump(include={"session", "k"}, mode="json")
    return Example("/v1/next", f"After {', '.join(session)}", body, lambda answer: answer["results"][0])


TAUGHT = {"width": 32, "batch_size": 50, "learning_rate": 5e-3, "local_epochs": 2}  # small data, few rounds
ITEMS = SimulatedTask(
    name="items",
    generated=CHAIN,
    taught={},
    strategy="lpsfed",
    preset="default",
    has_basis=True,
    cut=cut_shards,
    measure_bounds=measure_bounds,
    find_example=find_user,
    digest=lambda path: read_shard(path).digest,
    hide_test=hide_test_pairs,
)
SESSIONS = SimulatedTask(
    name="sessions",
    generated=CLICKS,
    taught=TAUGHT,
    strategy="fedavg",
    preset="sessions",
    has_basis=False,
    cut=cut_session_shards,
    measure_bounds=measure_session_bounds,
    find_example=find_visit,
    digest=lambda path: read_session_shard(path).digest,
    hide_test=hide_test_sessions,
)
SIMULATED = {task.name: task for task in (ITEMS, SESSIONS)}


def simulated_task(name: str) -> SimulatedTask:
    """SettingsError for a name that is not in the registry."""
    if name not in SIMULATED:
        raise SettingsError(f"task: expected one of {', '.join(SIMULATED)}, got {name!r}")
    return SIMULATED[name]
