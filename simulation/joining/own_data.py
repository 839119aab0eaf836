"""A silo's own data by task: its shard, and the words of consent.

A new task is one record of `OWN_DATA`. What reads and writes data is imported where it is used, because few commands
need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shared.errors import DataError, SettingsError
from shared.sums import list_sums
from shared.words import count_noun
from simulation.progress import step

if TYPE_CHECKING:
    from client_service.data.node_graphs import NodeShard
    from client_service.data.shard_head import ShardHead
    from shared.method.settings import MethodSettings
    from simulation.datasets.columns import FileOptions
    from simulation.datasets.dataset import Dataset
    from simulation.datasets.ratings import LeastRating
    from simulation.datasets.splits import SplitKind
    from simulation.graphs.read import GraphOptions
    from simulation.graphs.source import GraphRules
    from simulation.sessions.sessions import Sessions

USUAL_TASK = "items"
"""Task of an invitation that has no federation, and of settings that name no task."""
SPLIT_SEED = 0
QUICK_PAIRS = 80_000  # users x items, whose forecast takes a few seconds


class OwnTables(Protocol):
    """Tables of a silo's data, and the operator's options of reading them.

    An option is parsed when a task asks for it, so that each task refuses those of others first.
    """

    @property
    def path(self) -> Path | None:
        """File or folder."""

    @property
    def least(self) -> LeastRating:
        """Smallest rating that is positive."""

    @property
    def split(self) -> SplitKind | None:
        """Kind of split; None: the usual one."""

    @property
    def edges(self) -> Path | None:
        """File of a graph's edges."""

    @property
    def has_rules(self) -> bool:
        """Whether a rule is given."""

    def parse_rules(self) -> dict[str, str]:
        """Parses the rules."""

    def parse_file_options(self) -> FileOptions:
        """Parses the options of a file of interactions."""

    def parse_graph_options(self) -> GraphOptions:
        """Parses the options of a graph's files."""


@dataclass(frozen=True)
class OwnData:
    """Way of one task's data into a federation.

    convert: saves the tables at a path as the shard of a named silo, by the federation's method, and returns notes of
    what was left out. describe: sizes of a saved shard; None without one. gain: forecast, or general words, of what
    the silo of this shard gains among so many silos. summed: what the sums are over; empty: items. stays: what never
    leaves. refits: whether models are fitted again on everything that a silo has. rated: whether a shard may have
    ratings. titled: whether it may have titles and attributes of items. listed: whether all silos must share a list
    of items.
    """

    convert: Callable[[Path, str, Path, OwnTables, MethodSettings], Sequence[str]]
    describe: Callable[[Path], str | None]
    gain: Callable[[Path, int], str]
    summed: str
    stays: str
    refits: bool
    rated: bool
    titled: bool
    listed: bool


def own_data_of(task: str) -> OwnData:
    """Returns the record of a task. Raises SettingsError for an unknown one."""
    if task not in OWN_DATA:
        raise SettingsError(f"task: expected one of {', '.join(OWN_DATA)}, got {task!r}")
    return OWN_DATA[task]


def _convert_interactions(
    shard: Path, name: str, path: Path, given: OwnTables, method: MethodSettings
) -> Sequence[str]:
    from simulation.datasets.load import load_dataset

    if given.has_rules:
        raise SettingsError("--rule: expected none in a federation of users, whose silos hold no sessions")
    dataset = load_dataset(path, SPLIT_SEED, given.least, given.split, file_options=given.parse_file_options())
    if any(one.epsilon is not None for one in list_sums(method).values()):
        _require_explicit_options(dataset, given)
    return save_interactions(shard, name, dataset).notes


def _require_explicit_options(dataset: Dataset, given: OwnTables) -> None:
    """Raises SettingsError if options would make one user's data depend on other users."""
    why = "in a federation that hides each user in its sums (basis.epsilon)"
    if given.split == "global-time":
        raise SettingsError(f"--split: expected another than global-time {why}: its dates depend on all users")
    if given.least == "usual" and "rating" in dataset.events.columns:
        expected = "expected it, or --rating-kind, for data with ratings"
        raise SettingsError(f"--min-rating: {expected} {why}: the meaning of a rating must not depend on other users")


@step("writing the shard")
def save_interactions(folder: Path, name: str, dataset: Dataset) -> ShardHead:
    """Saves the whole data set as the silo's shard.

    It keeps pairs whose item occurs in no training pair: which items other silos have must not decide what counts of
    a user. Described items without interactions are kept beside the others.
    """
    import polars as pl

    from client_service.data.interaction_files import save_shard
    from client_service.data.interactions import build_shard, with_unmet_items
    from simulation.datasets.dataset import describe_unmet

    items = pl.DataFrame({"item": dataset.events["item"].unique().sort()})
    if dataset.titles is not None:
        items = items.join(dataset.titles, on="item", how="left")
    shard = build_shard(name, dataset.all_events(), items, dataset.notes)
    return save_shard(folder, replace(with_unmet_items(shard, describe_unmet(dataset)), rating=dataset.meaning))


@step("reading the shard")
def _describe_interactions(folder: Path) -> str | None:
    from client_service.data.files import current_file
    from client_service.data.interaction_files import INTERACTIONS, load_shard, shard_head

    if not current_file(folder, INTERACTIONS).exists():
        return None
    head = shard_head(load_shard(folder))
    more = f" and {head.unmet:,} without interactions" if head.unmet else ""
    nodes = f"{count_noun(head.users, 'user')}, {count_noun(head.items, 'item')}{more}"
    return f"{nodes}, {head.train + head.valid + head.test:,} interactions"


def _forecast_gain(shard: Path, silos: int) -> str:
    """Forecasts the gain from the silo's own data alone.

    Where that takes long, it names the command that forecasts.
    """
    from client_service.data.interaction_files import load_shard
    from client_service.joining_value.forecast import TIMES, estimate_joining_value
    from shared.method.settings import method_settings

    command = f"what `lpsfed worth {shard}` forecasts from its own data alone"
    whole = load_shard(shard)
    users, items = whole.train.shape
    if users * items > QUICK_PAIRS or len(whole.valid.indices) == 0:
        return command
    estimate = estimate_joining_value(whole, method_settings().cutoff, draws=2)
    if estimate.curve is None or estimate.few:
        return f"an unknown amount: its own data are too few for a forecast ({count_noun(users, 'user')})"
    nearest = min(range(len(TIMES)), key=lambda place: abs(math.log(TIMES[place] / silos)))
    return f"by its own forecast, in {estimate.sentences[nearest]}"


def _convert_sessions(shard: Path, name: str, path: Path, given: OwnTables, _: MethodSettings) -> Sequence[str]:
    from simulation.sessions.read import read_sessions
    from simulation.sessions.sessions import parse_rules

    if given.split is not None or given.least != "usual":
        raise SettingsError("--split, --min-rating: expected none with sessions, which are split by time")
    rules = parse_rules(given.parse_rules())
    return _save_sessions(shard, name, read_sessions(path, rules, given.parse_file_options()))


@step("writing the shard")
def _save_sessions(folder: Path, name: str, sessions: Sessions) -> Sequence[str]:
    from client_service.data.session_files import save_session_shard
    from simulation.sessions.cut import build_session_part

    save_session_shard(folder, replace(build_session_part(name, sessions), name=name))
    return tuple(sessions.notes)


@step("reading the shard")
def _describe_sessions(folder: Path) -> str | None:
    from client_service.data.files import current_file
    from client_service.data.session_files import CLICKS, load_session_shard

    if not current_file(folder, CLICKS).exists():
        return None
    visits = load_session_shard(folder)
    return f"{count_noun(len(visits.splits), 'session')}, {count_noun(len(visits.item_ids), 'item')}"


def _convert_graph(shard: Path, name: str, path: Path, given: OwnTables, method: MethodSettings) -> Sequence[str]:
    """Writes the shard of a graph with the columns and classes that all silos have."""
    from simulation.graphs.read import add_shared_names, read_graph, select_columns
    from simulation.graphs.source import parse_graph_rules

    if given.split is not None or given.least != "usual":
        raise SettingsError("--split, --min-rating: expected none with nodes: a column split, or --rule train=.6")
    nodes, rules = method.nodes, parse_graph_rules(given.parse_rules())
    reading = add_shared_names(given.parse_graph_options(), nodes.feature_names, nodes.class_names)
    graph = select_columns(read_graph(path, given.edges, reading, official=rules.official), nodes.feature_names)
    for what, agreed, own in (
        ("columns of features", nodes.features, len(graph.feature_names)),
        ("classes", nodes.classes, len(graph.classes)),
    ):
        if agreed not in (0, own):
            raise DataError(f"{path}: expected {agreed} {what}, as all silos of the federation have, got {own}")
    return _save_graph(shard, name, graph, rules, method)


@step("writing the shard")
def _save_graph(folder: Path, name: str, graph: NodeShard, rules: GraphRules, method: MethodSettings) -> Sequence[str]:
    """Saves a graph as the silo's shard.

    A split in the data is kept, else one is drawn. Raises DataError without a labelled node for training, and for
    features that the federation cannot sum.
    """
    from client_service.data.node_files import save_node_shard
    from client_service.data.node_graphs import TRAIN
    from simulation.graphs.source import require_summable, split_own_graph

    shard = split_own_graph(graph, name, rules)
    if not len(shard.nodes_of(TRAIN)):
        raise DataError(f"{folder}: expected a node with a label for training, got none")
    require_summable(shard, method)
    save_node_shard(folder, shard)
    return tuple(graph.notes)


@step("reading the shard")
def _describe_graph(folder: Path) -> str | None:
    from client_service.data.files import current_file
    from client_service.data.node_files import NODES, load_node_shard
    from client_service.data.node_graphs import UNKNOWN

    if not current_file(folder, NODES).exists():
        return None
    graph = load_node_shard(folder)
    known = int((graph.labels != UNKNOWN).sum())
    sizes = f"{count_noun(len(graph.node_ids), 'node')}, {known:,} with a label, {count_noun(graph.edges, 'edge')}"
    return f"{sizes}, {count_noun(len(graph.feature_names), 'feature')}, {len(graph.classes)} classes"


USERS_STAY = "users, ids of users, single interactions, titles, metrics"
OWN_DATA = {
    USUAL_TASK: OwnData(
        convert=_convert_interactions,
        describe=_describe_interactions,
        gain=_forecast_gain,
        summed="",
        stays=USERS_STAY,
        refits=True,
        rated=True,
        titled=True,
        listed=False,
    ),
    "sessions": OwnData(
        convert=_convert_sessions,
        describe=_describe_sessions,
        gain=lambda *_: "transitions between items that its own visits lack (docs/visits.md has figures)",
        summed="",
        stays=USERS_STAY,
        refits=False,
        rated=False,
        titled=False,
        listed=True,
    ),
    "nodes": OwnData(
        convert=_convert_graph,
        describe=_describe_graph,
        gain=lambda *_: (
            "labels that its own graph lacks (docs/nodes.md has figures); its page shows what joining has brought, by"
            " its own validation"
        ),
        summed="nodes, their neighbours and their labels",
        stays="ids, names, single nodes, edges and labels, metrics",
        refits=True,
        rated=False,
        titled=False,
        listed=False,
    ),
}
"""Kind of own data by task."""
