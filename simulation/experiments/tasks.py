"""Tasks in experiments: how to cut data, measure floors, find an example, hide test data.

The modules of a method are imported when it is called: cutting a file needs no floors, and no model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from shared.errors import SettingsError
from simulation.partitioning.sources import SHOPS, cut_shards

if TYPE_CHECKING:
    from shared.method.settings import MethodSettings, Preset
    from simulation.experiments.experiment import Experiment
    from simulation.experiments.floors import Bounds
    from simulation.partitioning.sources import Cut, Shards

GRAM = "node_gram"  # shared.sums.node_gram
SHOWN = 5  # items of an example
LIST_LENGTH, ASKED_USERS = 10, 20  # items of a list with a place for a new one; users in such requests


@dataclass(frozen=True)
class Example:
    """Example request to a silo.

    path: with its query; body: of a POST, None for a GET. caption: of the answer. choose: the list in the answer.
    asks: what is asked for, in words.
    """

    path: str
    caption: str
    body: dict[str, Any] | None = None
    asks: str = "a recommendation"
    choose: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda answer: answer)


class SimulatedTask(ABC):
    """Task in an experiment.

    demo_data: name of the data that a demonstration makes. demo_settings: settings that fit them. strategy, preset: the
    defaults. sums: the kind that a demonstration makes.
    """

    name: ClassVar[str]
    demo_data: ClassVar[str]
    demo_settings: ClassVar[dict[str, Any]] = {}
    strategy: ClassVar[str]
    preset: ClassVar[Preset]
    sums: ClassVar[str]

    def choose_method(self, preset: str | None, strategy: str, changes: dict[str, Any]) -> tuple[MethodSettings, int]:
        """Returns the settings of a run, and its default number of rounds."""
        from shared.method.settings import PRESET_ROUNDS, method_settings
        from shared.strategies import build_strategy

        name: Any = self.preset if preset is None else str(preset)
        method = method_settings(name, **changes)
        return method, build_strategy(strategy, method).enough_rounds or PRESET_ROUNDS[name]

    def recognises(self, data: str) -> bool:
        """Tells whether data are for this task alone, by their names."""
        return data == self.demo_data

    def fit_method(self, method: MethodSettings, shards: Sequence[Path]) -> MethodSettings:
        """Completes the settings by sizes that all shards share; by default none."""
        del shards
        return method

    @abstractmethod
    def cut(self, data: str, cut: Cut, folder: Path) -> Shards:
        """Reads, divides and writes a data set."""

    @abstractmethod
    def measure_bounds(self, experiment: Experiment, *, shown: bool) -> Bounds:
        """Measures the bounds of an experiment's trained model."""

    def choose_primary(self, shards: Sequence[Path]) -> str:
        """Returns the measure by which validation chooses; by default the task's."""
        from client_service.tasks import task_named

        del shards
        return task_named(self.name).primary

    def list_new_item_requests(self, shard: Path) -> tuple[str, ...]:
        """Lists requests whose answers may end with a new item; by default none."""
        del shard
        return ()

    def find_lone_shards(self, shards: Sequence[Path]) -> frozenset[str]:
        """Finds the shards that have no item in common with any other; by default none."""
        del shards
        return frozenset()

    @abstractmethod
    def find_example(self, shard: Path) -> Example:
        """Finds an example request about the shard's data."""

    def declare_content(self, shards: Sequence[Path]) -> dict[str, str]:
        """Returns the settings that declare content sums, if the shards can have them.

        By default none.
        """
        del shards
        return {}

    @abstractmethod
    def digest(self, shard: Path) -> str:
        """Returns the digest of a shard's content."""

    @abstractmethod
    def hide_test(self, path: Path, blind: Path) -> None:
        """Writes a shard without its test data."""


class ItemTask(SimulatedTask):
    """Task of item lists for users."""

    name = "items"
    demo_data = SHOPS
    strategy = "lpsfed"
    preset = "default"
    sums = "exact"

    def cut(self, data: str, cut: Cut, folder: Path) -> Shards:
        return cut_shards(data, cut, folder)

    def measure_bounds(self, experiment: Experiment, *, shown: bool) -> Bounds:
        from simulation.experiments.floors import measure_bounds

        return measure_bounds(experiment, shown=shown)

    def find_lone_shards(self, shards: Sequence[Path]) -> frozenset[str]:
        """Finds the shards that have no item in common with any other."""
        from client_service.data.interaction_files import load_shard

        items = {path.name: frozenset(load_shard(path).item_ids) for path in shards}
        counts = Counter(item for own in items.values() for item in own)
        return frozenset(name for name, own in items.items() if max(map(counts.__getitem__, own)) == 1)

    def list_new_item_requests(self, shard: Path) -> tuple[str, ...]:
        """Lists requests of the shard's first users, whose answers may end with a new item."""
        from client_service.data.interaction_files import load_shard

        users = load_shard(shard).user_ids[:ASKED_USERS]
        return tuple(f"/v1/users/{user}/recommendations?k={LIST_LENGTH}&explain=true" for user in users)

    def find_example(self, shard: Path) -> Example:
        """Builds the request for the list of a user of the shard."""
        from client_service.data.interaction_files import load_shard

        user = load_shard(shard).user_ids[0]
        return Example(f"/v1/users/{user}/recommendations?k={SHOWN}", f"For {user}")

    def declare_content(self, shards: Sequence[Path]) -> dict[str, str]:
        """Returns the settings that declare content sums.

        It needs titles or attributes of items in all shards.
        """
        from client_service.data.interaction_files import load_shard

        read = map(load_shard, shards)
        described = all(shard.titles is not None or shard.features is not None for shard in read)
        return {"sums.content.kind": "content"} if described else {}

    def digest(self, shard: Path) -> str:
        from client_service.data.interaction_files import load_shard

        return load_shard(shard).digest

    def hide_test(self, path: Path, blind: Path) -> None:
        from simulation.experiments.blind import hide_test_pairs

        hide_test_pairs(path, blind)


class SessionTask(SimulatedTask):
    """Task of the next click in a session."""

    name = "sessions"
    demo_data = "clicks"  # simulation.sessions.source.CLICKS
    demo_settings: ClassVar = {
        "width": 32,
        "batch_size": 50,
        "learning_rate": 5e-3,
        "local_epochs": 2,
    }  # small data, few rounds
    strategy = "fedavg"
    preset = "sessions"
    sums = "transitions"

    def recognises(self, data: str) -> bool:
        """Tells whether data are generated visits, session shards, or public training sessions."""
        from simulation.partitioning.sources import holds_shards

        folder = Path(data)
        named = any(folder.glob("train_sessions.txt*")) if folder.is_dir() else data == self.demo_data
        return named or holds_shards(folder, "sessions.parquet")

    def cut(self, data: str, cut: Cut, folder: Path) -> Shards:
        from simulation.sessions.source import cut_session_shards

        return cut_session_shards(data, cut, folder)

    def measure_bounds(self, experiment: Experiment, *, shown: bool) -> Bounds:
        from simulation.experiments.floors import measure_session_bounds

        return measure_session_bounds(experiment, shown=shown)

    def find_example(self, shard: Path) -> Example:
        """Builds the request for the next click of a test session of the shard.

        Without one a training session is used.
        """
        from client_service.data.session_files import load_session_shard
        from client_service.data.sessions import TEST, TRAIN
        from client_service.serving.messages import NextIn

        sessions = load_session_shard(shard)
        clicks, starts = sessions.split_sessions(TEST if (sessions.splits == TEST).any() else TRAIN)
        session = tuple(sessions.item_ids[row] for row in clicks[: max(1, starts[1] - 1)])
        body = NextIn(session=session, k=SHOWN).model_dump(include={"session", "k"}, mode="json")
        return Example("/v1/next", f"After {', '.join(session)}", body, choose=lambda answer: answer["results"][0])

    def digest(self, shard: Path) -> str:
        from client_service.data.session_files import load_session_shard

        return load_session_shard(shard).digest

    def hide_test(self, path: Path, blind: Path) -> None:
        from simulation.experiments.blind import hide_test_sessions

        hide_test_sessions(path, blind)


class NodeTask(SimulatedTask):
    """Task of labels of nodes in a graph."""

    name = "nodes"
    demo_data = "rings"  # simulation.graphs.source.RINGS
    demo_settings: ClassVar = {"nodes.random_features": 0}  # validation would choose none, and sums are a tenth without
    strategy = "local"
    preset = "nodes"
    sums = GRAM

    def choose_method(self, preset: str | None, strategy: str, changes: dict[str, Any]) -> tuple[MethodSettings, int]:
        """Chooses Gram sums by default, and a network for strategies that share parameters."""
        from shared.method.node_settings import DEFAULT_NETWORK

        if strategy != self.strategy:
            changes = {**DEFAULT_NETWORK, **changes}
        if strategy == self.strategy and changes.get("basis.kind", GRAM) != "off":
            untrained = {"strategy.train": "false", "strategy.send": "false"}
            changes = {"basis.kind": GRAM, **({} if {*untrained} & {*changes} else untrained), **changes}
        return super().choose_method(preset, strategy, changes)

    def recognises(self, data: str) -> bool:
        """Tells whether data are rings, node shards, .npz, GraphML or graph tables."""
        from simulation.graphs.read import is_graph
        from simulation.partitioning.sources import holds_shards

        return data == self.demo_data or is_graph(Path(data)) or holds_shards(Path(data), "nodes.parquet")

    def choose_primary(self, shards: Sequence[Path]) -> str:
        """Chooses the area under the ROC curve with two classes, else accuracy."""
        from client_service.data.node_files import load_node_shard
        from client_service.evaluation.node_measures import choose_primary

        return choose_primary(len(load_node_shard(shards[0]).classes))

    def cut(self, data: str, cut: Cut, folder: Path) -> Shards:
        from simulation.graphs.source import cut_node_shards

        return cut_node_shards(data, cut, folder)

    def fit_method(self, method: MethodSettings, shards: Sequence[Path]) -> MethodSettings:
        """Sets the numbers of features and classes, which all silos share.

        SettingsError for shards with different ones.
        """
        from client_service.data.node_files import load_node_shard
        from shared.method.settings import BasisSettings, validate_settings
        from shared.sums.node_directions import DIRECTIONS, NODE_DIRECTIONS

        found = [load_node_shard(path) for path in shards]
        if len({shard.columns_digest for shard in found}) > 1:
            raise SettingsError("nodes: expected the same columns of features and classes in all shards, got others")
        sizes = {"features": len(found[0].feature_names), "classes": len(found[0].classes)}
        nodes = method.nodes.model_copy(update=sizes)
        changed = method.model_copy(update={"nodes": nodes})
        if method.basis.kind == GRAM and nodes.projected:  # wide features are projected to directions of all silos
            directions = {DIRECTIONS: BasisSettings(kind=NODE_DIRECTIONS.name)}
            changed = changed.model_copy(update={"sums": {**directions, **method.sums}})
        return validate_settings(type(method), changed.model_dump())

    def measure_bounds(self, experiment: Experiment, *, shown: bool) -> Bounds:
        from simulation.experiments.node_floors import measure_node_bounds

        return measure_node_bounds(experiment, shown=shown)

    def find_example(self, shard: Path) -> Example:
        """Builds the request for the label of a node.

        It is a node without a label, else a test node.
        """
        from client_service.data.node_files import load_node_shard
        from client_service.data.node_graphs import TEST, UNLABELLED

        graph = load_node_shard(shard)
        nodes = next((rows for split in (UNLABELLED, TEST) if len(rows := graph.nodes_of(split))), graph.nodes_of(0))
        node = graph.node_ids[max(nodes, key=graph.degrees.__getitem__)]
        return Example(
            "/v1/labels", f"Label of {node}", {"nodes": [node]}, "a label", lambda answer: answer["results"][0]
        )

    def digest(self, shard: Path) -> str:
        from client_service.data.node_files import load_node_shard

        return load_node_shard(shard).digest

    def hide_test(self, path: Path, blind: Path) -> None:
        from simulation.experiments.blind import hide_test_labels

        hide_test_labels(path, blind)


SIMULATED: dict[str, SimulatedTask] = {task.name: task for task in (ItemTask(), SessionTask(), NodeTask())}


def simulated_task(name: str) -> SimulatedTask:
    """Returns a task by its name; raises SettingsError for an unknown one."""
    if name not in SIMULATED:
        raise SettingsError(f"task: expected one of {', '.join(SIMULATED)}, got {name!r}")
    return SIMULATED[name]


def recognise_task(data: str) -> str:
    """Finds the task of data by their names; the default is item lists."""
    return next((task.name for task in SIMULATED.values() if task.recognises(data)), ItemTask.name)
