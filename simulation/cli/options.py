"""Choices, arguments and options that several commands share, and printing of results."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from audit.cli import AsJson, Authority, CallFlags, Certificate, CertificateKey
from audit.terminal import spread_records
from shared.errors import SettingsError
from simulation.datasets.columns import COLUMNS, FileOptions
from simulation.partitioning.sources import CHAIN, SHOPS, SYNTHETIC, USUAL_CLIENTS, Cut
from simulation.reports.terminal import ERR

if TYPE_CHECKING:
    from simulation.datasets.ratings import LeastRating
    from simulation.datasets.splits import SplitKind
    from simulation.graphs.read import GraphOptions

INTERRUPTED_CODE = 130  # as a shell reports a command that Ctrl-C ended
LIST_FILES = (".parquet", ".csv", ".ndjson")  # the names of simulation.operating.lists_file.SINKS
DEFAULT_DRAWS = 4  # client_service.joining_value.forecast.DRAWS


class Method(StrEnum):
    """Values of `--method`, which divides a data set.

    Names of simulation.partitioning.methods.METHODS, three more for sessions of simulation.sessions.cut.CUTS, and the
    last three for nodes of simulation.graphs.cut.METHODS.
    """

    spectral = "spectral"
    users = "users"
    random = "random"
    ego = "ego"
    interconnected = "interconnected"
    time = "time"
    items = "items"
    device = "device"
    metis = "metis"
    growth = "growth"
    overlapping = "overlapping"


class StrategyName(StrEnum):
    """Names of shared.strategies.STRATEGIES."""

    lpsfed = "lpsfed"
    fedavg = "fedavg"
    local = "local"
    fedprox = "fedprox"
    fedper = "fedper"
    fedpub = "fedpub"
    fedssp = "fedssp"
    fedmf = "fedmf"
    f2mf = "f2mf"
    pfedrec = "pfedrec"
    fedrap = "fedrap"
    fedpergnn = "fedpergnn"
    fedhgnn = "fedhgnn"
    fedutr = "fedutr"
    fedutr_sar = "fedutr_sar"
    fedadam = "fedadam"
    fedyogi = "fedyogi"
    fedga = "fedga"
    fedsgd = "fedsgd"
    fedgsp = "fedgsp"


STRATEGY_OPTION = typer.Option(metavar="<name>", help=", ".join(StrategyName))


class PresetName(StrEnum):
    """Presets of the method's settings."""

    default = "default"
    paper = "paper"
    sessions = "sessions"
    nodes = "nodes"


class ScenarioName(StrEnum):
    """Values of `--scenario`: names of simulation.partitioning.scenarios.SCENARIOS."""

    chain = "chain"
    big_and_tiny = "big-and-tiny"
    regional = "regional"
    ids_differ = "ids-differ"
    late_joiner = "late-joiner"
    disjoint = "disjoint"
    disjoint_genres = "disjoint-genres"
    taste = "taste"


class TaskName(StrEnum):
    """Values of `--task`: names of simulation.experiments.tasks.SIMULATED."""

    items = "items"
    sessions = "sessions"
    nodes = "nodes"


class BasisKind(StrEnum):
    """Kinds of common basis, as in shared.method.settings.BasisSettings."""

    off = "off"
    exact = "exact"
    iterated = "iterated"
    transitions = "transitions"
    node_gram = "node_gram"


class ItemBasisKind(StrEnum):
    """Kinds of common basis of a federation of items."""

    off = "off"
    exact = "exact"
    iterated = "iterated"


class Share(StrEnum):
    """Values of the aggregator's setting `share`."""

    parameters = "parameters"
    sums = "sums"
    both = "both"


class AcceptChoice(StrEnum):
    """Values of `--accept`: what may leave a silo of a federation that sums."""

    parameters = "parameters"
    sums = "sums"


class EngineChoice(StrEnum):
    """Values of `--engine`: names of simulation.engines.ENGINES."""

    services = "services"
    plain = "plain"
    ray = "ray"


class SplitName(StrEnum):
    """Values of `--split`: names of simulation.datasets.splits.SplitKind."""

    random = "random"
    time = "time"
    leave_one_out = "leave-one-out"
    global_time = "global-time"


class RatingKindName(StrEnum):
    """Values of `--rating-kind`: names of client_service.data.ratings.RATING_SCALES."""

    stars = "stars"
    ten = "ten"
    hundred = "hundred"
    binary = "binary"
    signed = "signed"
    counts = "counts"
    any = "any"


class Device(StrEnum):
    """Values of `--device`."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


__all__ = [
    "AsJson",
    "Authority",
    "CallFlags",
    "Certificate",
    "CertificateKey",
    "spread_records",
]  # the same for the audit's commands

Data = Annotated[
    str, typer.Argument(help=f"Data set, folder of shards, '{SYNTHETIC}', '{CHAIN}', '{SHOPS}', 'clicks' or 'rings'")
]
Secure = Annotated[bool, typer.Option("--secure", help="Mask updates: the aggregator sees only their sum")]
DeviceChoice = Annotated[Device, typer.Option("--device", help="Device of the training; auto: a GPU if there is one")]
NoFloors = Annotated[bool, typer.Option("--no-floors", help="Skip the baselines: each silo alone, and all data pooled")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="Rule for reading the data, KEY=VALUE; repeatable. Sessions: gap_seconds, shortest, longest, support."
        " Nodes: official, train, valid; of 'rings' also homophily, accounts",
    ),
]
Preset = Annotated[PresetName, typer.Option(metavar="<name>", help=f"Preset of settings: {', '.join(PresetName)}")]
TASK_HELP = "items: top-N recommendation; sessions: next item; nodes: labels in a graph"
Task = Annotated[TaskName, typer.Option("--task", help=TASK_HELP)]
TaskOrNone = Annotated[TaskName | None, typer.Option("--task", help=f"{TASK_HELP} (default: by the data)")]
Strategy = Annotated[StrategyName, STRATEGY_OPTION]
StrategyOrNone = Annotated[StrategyName | None, STRATEGY_OPTION]
Clients = Annotated[int, typer.Option(min=1, help="Number of clients")]
ClientsOrNone = Annotated[
    int | None,
    typer.Option(
        "--clients",
        "--silos",
        min=1,
        help=f"Number of clients (default {USUAL_CLIENTS}; for a folder of shards, all in it)",
    ),
]
Scenario = Annotated[
    ScenarioName | None,
    typer.Option(
        "--scenario",
        metavar="<scenario>",
        help=f"Realistic federation in place of --method: {', '.join(ScenarioName)}. Its silos share only sums unless"
        " --set says otherwise; --seed seeds its random parts",
    ),
]
Small = Annotated[
    int | None, typer.Option("--small", min=2, help="Users of the small shop in --scenario disjoint (default 25)")
]
MatchItems = Annotated[
    bool, typer.Option("--match-items", help="Match own ids by titles first, in --scenario ids-differ")
]
PartitionNumber = Annotated[
    int, typer.Option("--partition", min=0, help="Number of the partition: 0 is deterministic, others are random")
]
How = Annotated[
    Method | None,
    typer.Option(
        "--method",
        metavar="<method>",
        help=f"How users and items are divided: {', '.join(Method)} (default: spectral, the paper's, which drops"
        " interactions between clients; for a file, users, which drops nothing; for a chain, its shops; for nodes,"
        " metis if pymetis is installed, else growth)",
    ),
]
SplitChoice = Annotated[
    SplitName | None,
    typer.Option(
        "--split",
        help="Split of each user's interactions, if the data have none: random (default), time, leave-one-out,"
        " global-time (the same dates for all users)",
    ),
]
SplitSeed = Annotated[int, typer.Option(min=0, help="Seed of the 8:1:1 split, if the data have none")]
MinRating = Annotated[
    float | None,
    typer.Option(
        help="Smallest rating that is positive (default: 4 of 5, 8 of 10, any of a folder's data set; 0: any)"
    ),
]
RatingKindChoice = Annotated[
    RatingKindName | None,
    typer.Option(
        "--rating-kind", metavar="<kind>", help=f"Kind of ratings: {', '.join(RatingKindName)} (default: detected)"
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help=f"Names of columns in the file, as user=buyer,item=sku. Fields: {', '.join(COLUMNS)}; of a graph: node,"
        " label, split, source, target, weight, type",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", help="Delimiter of fields (default: detected; comma, semicolon, tab or bar)"),
]
Edges = Annotated[
    Path | None, typer.Option("--edges", help="File of edges, for nodes (default: the file edges beside them)")
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--values",
        help="Values of a column of nodes in their order, as country=DE,FR; of the classes, as label=ok,fraud;"
        " repeatable",
    ),
]
SettingsFile = Annotated[Path | None, typer.Option(help="TOML file of settings; environment and options override it")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Setting of the method, KEY=VALUE; repeatable")]
CommonBasis = Annotated[
    ItemBasisKind,
    typer.Option(
        "--common-basis",
        metavar="<kind>",
        help=f"Statistics that are summed over the silos before training: {', '.join(ItemBasisKind)}",
    ),
]
CommonBasisOrNone = Annotated[
    BasisKind | None,
    typer.Option(
        "--common-basis",
        metavar="<kind>",
        help=f"Statistics that are summed over the silos before training: {', '.join(BasisKind)} (default: off;"
        " in `lpsfed run`, as the federation declares)",
    ),
]
Rank = Annotated[int | None, typer.Option("--rank", min=1, help="Rank of an iterated basis")]
BasisRounds = Annotated[int | None, typer.Option("--basis-rounds", min=2, help="Rounds of an iterated basis")]
EngineName = Annotated[
    EngineChoice,
    typer.Option(
        "--engine",
        help="services: the real services in one process; plain: functions alone; ray: the same on a cluster."
        " plain and ray resume an interrupted run of the same command and --out",
    ),
]
RayAddress = Annotated[
    str, typer.Option("--ray-address", help="Address of a Ray cluster, or auto (default: start one on this machine)")
]
RayCpus = Annotated[int, typer.Option("--ray-cpus", min=0, help="CPUs of the Ray cluster on this machine; 0: all")]
SiloMemory = Annotated[
    int | None,
    typer.Option(
        "--silo-memory",
        min=1,
        help="MiB of a machine for the silos of plain and ray; beyond it silos wait on the disk (default: half of it)",
    ),
]
Privacy = Annotated[list[str] | None, typer.Option(help="Differential privacy at every client, KEY=VALUE; repeatable")]

AllowHttp = Annotated[
    bool, typer.Option("--allow-http", help="Allow plain http to the aggregator, over a trusted network")
]
OperatorToken = Annotated[Path, typer.Option("--operator-token-file", help="File with the operator's token")]
AggregatorUrl = Annotated[str, typer.Option("--aggregator-url", help="URL of the aggregator")]
AggregatorUrlOrNone = Annotated[
    str | None,
    typer.Option(
        "--aggregator-url",
        help="URL of the aggregator (default: of the settings that --silo names, else http://127.0.0.1:8800)",
    ),
]
Silos = Annotated[
    list[Path] | None,
    typer.Option(
        "--silo", help="silo.toml of a silo on this machine: its result of the run is printed too; repeatable"
    ),
]
DEFAULT_URL = "http://127.0.0.1:8800"


def choose_task(task: TaskName | None, data: str, file: FileFlags) -> TaskName:
    """Returns the requested task, else the data's, else lists of items."""
    from simulation.experiments.tasks import recognise_task

    if task is None and file.edges is not None:
        return TaskName.nodes
    return TaskName(recognise_task(data)) if task is None else task


def split_kind(split: SplitName | None) -> SplitKind | None:
    """Returns the requested split, as `load_dataset` takes it."""
    return None if split is None else split.value


@dataclass(frozen=True)
class DivisionFlags:
    """Options that divide a data set among clients and each user's interactions by split."""

    method: How = None
    number: PartitionNumber = 0
    split: SplitChoice = None
    split_seed: SplitSeed = 0
    scenario: Scenario = None
    match_items: MatchItems = False
    small: Small = None


@dataclass(frozen=True)
class FileFlags:
    """Options of reading a file of interactions or the files of a graph."""

    min_rating: MinRating = None
    rating_kind: RatingKindChoice = None
    columns: Columns = None
    delimiter: Delimiter = None
    edges: Edges = None
    values: Values = None


@dataclass(frozen=True)
class BasisFlags:
    """Options of a run's common basis."""

    common_basis: CommonBasisOrNone = None
    rank: Rank = None
    basis_rounds: BasisRounds = None


@dataclass(frozen=True)
class EngineFlags:
    """Options of the engine that runs the clients of a simulation."""

    engine: EngineName = EngineChoice.services
    ray_address: RayAddress = ""
    ray_cpus: RayCpus = 0
    silo_memory: SiloMemory = None


def choose_cut(
    data: str, task: TaskName, clients: int | None, how: DivisionFlags, file: FileFlags, rules: list[str] | None = None
) -> Cut:
    """Chooses how to divide `data`.

    A user's own file keeps every interaction, is divided by users, and its ratings count by their scale. A data set
    in a folder is divided, and its ratings are read, as in published tables.
    """
    own = Path(data).is_file() and task is TaskName.items
    scenario = None if how.scenario is None else how.scenario.value
    method = how.method.value if how.method is not None else "users" if own and scenario is None else None
    graph = task is TaskName.nodes
    if not graph and (file.edges is not None or file.values):
        raise SettingsError(f"--edges, --values: expected them with --task nodes alone, got task {task.value}")
    has_options = graph and (file.columns or file.delimiter or file.values)
    file_options = (
        parse_graph_options(file.columns, file.delimiter, file.values)
        if has_options
        else parse_file_options(file.columns, file.delimiter)
    )
    least = choose_min_rating(file.min_rating, file.rating_kind, "usual" if own else None)
    rule = parse_pairs(rules or [], "--rule")
    return Cut(
        clients,
        method,
        how.number,
        how.split_seed,
        least,
        split_kind(how.split),
        rule,
        scenario,
        how.small,
        file_options,
        file.edges,
    )


def choose_min_rating(min_rating: float | None, kind: RatingKindName | None, default: LeastRating) -> LeastRating:
    """Returns the rule of --min-rating or --rating-kind, as `load_dataset` takes it.

    Raises SettingsError for both.
    """
    if min_rating is not None and kind is not None:
        raise SettingsError("--min-rating, --rating-kind: expected one of them, got both")
    if kind is not None:
        return kind.value
    return default if min_rating is None else min_rating


def parse_file_options(columns: str | None, delimiter: str | None) -> FileOptions:
    """Parses --columns and --delimiter. Raises SettingsError for an unknown field or delimiter."""
    return FileOptions(*_parse_reading(columns, delimiter, COLUMNS))


def parse_graph_options(
    columns: str | None, delimiter: str | None, values: list[str] | None, *, shared: bool = True
) -> GraphOptions:
    """Parses --columns, --delimiter and --values of a graph's files.

    shared: see `GraphOptions.shared_values`.
    """
    from simulation.graphs.read import FIELDS, GraphOptions

    pairs, mark = _parse_reading(columns, delimiter, FIELDS)
    words_by_column = {
        name.strip().lower(): tuple(word for one in text.split(",") if (word := one.strip()))
        for name, text in parse_pairs(values or [], "--values").items()
    }
    if doubled := [name for name, words in words_by_column.items() if not words or len(set(words)) < len(words)]:
        raise SettingsError(f"--values: expected different words with commas between them for {doubled[0]!r}")
    return GraphOptions(pairs, mark, values=words_by_column, shared_values=shared)


def _parse_reading(
    columns: str | None, delimiter: str | None, fields: Collection[str]
) -> tuple[dict[str, str], str | None]:
    pairs = parse_pairs(columns.split(","), "--columns") if columns else {}
    if unknown := [name for name in pairs if name not in fields]:
        raise SettingsError(f"--columns: expected fields of {', '.join(fields)}, got {unknown[0]!r}")
    mark = {"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter)
    if mark is not None and (len(mark) != 1 or mark in '"\n\r'):
        raise SettingsError(f"--delimiter: expected one character, or tab, got {delimiter!r}")
    return pairs, mark


def value_or_default(flag: StrEnum | None, usual: str) -> str:
    """Returns the option's value, else the default."""
    return usual if flag is None else flag.value


def drop_unset_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that are set; an enumeration as its text."""
    plain = {name: flag.value if isinstance(flag, StrEnum) else flag for name, flag in flags.items()}
    return {name: flag for name, flag in plain.items() if flag is not None}


def is_interactive() -> bool:
    """Tells whether stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def parse_method_changes(changes: list[str] | None, basis: BasisFlags) -> dict[str, Any]:
    """Parses the method's settings of --set and of the options of the common basis.

    Raises SettingsError for an option of another kind of basis.
    """
    kind, rank, rounds = basis.common_basis, basis.rank, basis.basis_rounds
    given = {"basis.kind": None if kind is None else kind.value, "basis.rank": rank, "basis.rounds": rounds}
    changed = parse_pairs(changes or []) | {name: value for name, value in given.items() if value is not None}
    kind_of_run = changed.get("basis.kind", BasisKind.off.value)
    noised = "basis.epsilon" in changed  # of which each silo keeps as many frequencies at most
    for flag, value in (("--rank", None if noised else rank), ("--basis-rounds", rounds)):
        if value is not None and kind_of_run != BasisKind.iterated.value:
            raise SettingsError(f"{flag}: expected it with --common-basis iterated alone, got it with {kind_of_run}")
    return changed


def parse_pairs(changes: list[str], flag: str = "--set") -> dict[str, str]:
    """Parses texts of the form key=value. Raises SettingsError for others."""
    split = [change.partition("=") for change in changes]
    if wrong := [change for change, (key, mark, _) in zip(changes, split, strict=True) if not key or not mark]:
        raise SettingsError(f"{flag}: expected key=value, got {wrong[0]!r}")
    return {key: value for key, _, value in split}


def ensure_folder(folder: Path, flag: str = "--out") -> Path:
    """Makes the folder where it is missing. Raises SettingsError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{flag}: expected a folder, or a place for one, got {folder} ({error.strerror})") from None
    return folder


def print_notes(notes: Iterable[str]) -> None:
    """Prints notes about the data on stderr, before the results."""
    for note in notes:
        ERR.print(f"- {note}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints a value as JSON on stdout."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
