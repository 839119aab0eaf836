"""Content of a table's folder: config.toml the plan, paper.toml the paper's figures, run.py extensions.

A table of plain runs needs no code of its own. Where config.toml has blocks, run.py may define, each on its own:

- measure(work) -> dict: measures a row whose strategy is "run.py". Its "clients" (a list with client, recall, ndcg,
  test_users, users and items each) put the row in the ordinary tables; all else stands in the line under "extra".
- extra(work, experiment, outcome) -> dict: reads a finished run of any strategy, before its state is removed; the
  result stands in the line as "extra".
- render(lines) -> str: Markdown that follows the table's own; `lines` are its measured lines of results.
- check(lines) -> list of complaints: further checks of a quick run.

Where config.toml has none, the table is run.py's alone: run(config, quick=, data=, out=) -> rows, render(rows) and
check(rows); and where the paper claims something, claims(rows) -> [(claim, data, finding, verdict)]. `config` is
config.toml, with `quick` its [quick] section laid over the rest.
"""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from client_service.evaluation.metrics import METRICS, PRIMARY
from shared.errors import SettingsError
from shared.method.settings import MethodSettings, Preset, method_settings, validate_settings
from simulation.partitioning.methods import METHODS

ROOT = Path(__file__).parents[1]
View = Literal["overall", "structure", "activity", "cost", "sweep", "special"]
Overlap = Literal["popular", "random"]
FIRST = ("basis",)  # tables that come before all others
UNTRAINED = "LPSFed, untrained"  # the score that training starts at; measured with the floors, and none of them
CENTRALISED, FLOORS, SPECIAL = "centralised", "floors", "run.py"  # strategies that no registry knows
REVISION = 2  # raised by hand when an algorithm, the split or the evaluation changes its outcome
QUICK: dict[str, Any] = {
    "partitions": [0],
    "seeds": [0],
    "rounds": 2,
    "blocks": [{"data": ["synthetic-400x240"]}],
    "method": {"width": 8, "cutoff": 32, "negatives": 8, "anchor.users": 100, "anchor.items": 100, "anchor.edges": 900},
}


class Part(BaseModel):
    """Part of a TOML file, immutable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Part):
    """One line of a table: a strategy with some settings of the method changed.

    shared_items: the strategy needs items that several clients have. sweep, value: where the row stands in a figure.
    privacy: settings of differential privacy at every client; empty if there is none.
    """

    label: str
    strategy: str
    preset: Preset = "default"
    method: dict[str, Any] = {}
    privacy: dict[str, Any] = {}
    rounds: int | None = Field(None, ge=1)
    shared_items: bool = False
    sweep: str = ""
    value: float | None = None

    def method_settings(self) -> MethodSettings:
        """Returns the row's settings; raises SettingsError for an invalid one."""
        return method_settings(self.preset, **self.method)


class Block(Part):
    """Data sets that are cut in one way.

    fewest: users and items with fewer records are removed before the cut. overlap: share of the items that all silos
    have in common, those with the most records first or drawn at random; every other item is renamed in each silo.
    rows: labels that are measured here; empty for all.
    """

    name: str = ""
    data: tuple[str, ...] = Field(min_length=1)
    clients: int = Field(4, ge=1)
    cut: str = "spectral"
    fewest: int = Field(0, ge=0)
    overlap: float = Field(1.0, ge=0, le=1)
    overlap_of: Overlap = "popular"
    rows: tuple[str, ...] = ()

    @field_validator("cut")
    @classmethod
    def _require_cut(cls, cut: str) -> str:
        if cut not in METHODS:
            raise ValueError(f"expected one of {', '.join(METHODS)}")
        return cut

    def column_name(self, data: str) -> str:
        """Returns the name of one data set's column, which paper.toml uses too."""
        return f"{self.name}: {data}" if self.name else data


class Plan(Part):
    """Plan of one table.

    standing: whether it has the floors, local-only training and the centralised model.
    """

    name: str
    title: str
    source: str
    view: View = "overall"
    rounds: int = Field(5, ge=1)
    partitions: tuple[int, ...] = Field((0, 1), min_length=1)
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    groups: bool = False
    standing: bool = True
    reference: str = "LPSFed"
    method: dict[str, Any] = {}
    like: str = ""
    blocks: tuple[Block, ...] = Field(min_length=1)
    methods: tuple[Row, ...] = ()

    @model_validator(mode="after")
    def _named_once(self) -> Plan:
        for what, names in (("label", [row.label for row in self.methods]), ("block", self.column_names())):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"expected each {what} once, got {sorted(twice)} again")
        return self

    @model_validator(mode="after")
    def _require_rows(self) -> Plan:
        asked = {label for block in self.blocks for label in block.rows}
        if unknown := asked - {row.label for row in self.rows()}:
            raise ValueError(f"expected rows of blocks to be labels of this table, got {sorted(unknown)}")
        return self

    def rows_of(self, block: Block) -> tuple[Row, ...]:
        """Returns the rows that are measured in a block's columns."""
        return tuple(row for row in self.rows() if not block.rows or row.label in block.rows)

    def column_names(self) -> list[str]:
        """Returns the names of all columns, in the order of the blocks."""
        return [block.column_name(data) for block in self.blocks for data in block.data]

    def rows(self) -> tuple[Row, ...]:
        """Returns the configured rows, and the standing rows: local and centralised training."""
        have = {row.label for row in self.methods}
        every = (*self.methods, *(row for row in STANDING if self.standing and row.label not in have))
        return tuple(row.model_copy(update={"method": self.method | row.method}) for row in every)


STANDING = (Row(label="local", strategy="local"), Row(label=CENTRALISED, strategy=CENTRALISED))


def table_names(root: Path = ROOT) -> tuple[str, ...]:
    """Returns the names of all tables: FIRST, then by number.

    A table is a folder with a config.toml.
    """
    names = (path.parent.name for path in root.glob("*/config.toml"))
    return tuple(sorted(names, key=lambda name: (name not in FIRST, name.rstrip("0123456789"), len(name), name)))


def read_plan(name: str, *, quick: bool = False, root: Path = ROOT) -> Plan:
    """Reads the plan of one table; with `quick` its small replacement.

    Raises SettingsError that names the file and the field.
    """
    path = root / name / "config.toml"
    values = _read_config(name, root)
    if like := values.get("like"):
        own = values.get("methods", [])
        named = {row["label"] for row in own}
        values["methods"] = [*(row for row in _read_config(like, root)["methods"] if row["label"] not in named), *own]
    small = values.pop("quick", None)
    if quick:
        values = _quick_values(path, values, {**QUICK, **(small or {})})
    try:
        return validate_settings(Plan, {"name": name, **values})
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def _read_config(name: str, root: Path) -> dict[str, Any]:
    if name not in table_names(root):
        raise SettingsError(f"benchmark: expected one of {', '.join(table_names(root))}, got {name!r}")
    return read_toml(root / name / "config.toml")


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file; raises SettingsError that names an unreadable file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: expected readable TOML ({error})") from None


def _quick_values(path: Path, values: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Applies the quick section, whose `methods` are labels of the full one."""
    rows = {row["label"]: row for row in values.get("methods", [])}
    wanted = small.pop("methods", list(rows))
    if missing := [label for label in wanted if label not in rows]:
        raise SettingsError(f"{path}: quick.methods: expected labels of this table, got {missing}")
    return {**values, **small, "methods": [rows[label] for label in wanted]}


class Claim(Part):
    """Claim that `row` is ahead of every row of `over` in `metric`.

    "floors" stands for all floors.
    """

    says: str
    row: str = "LPSFed"
    over: tuple[str, ...] = Field(min_length=1)
    metric: str = PRIMARY
    part: str = Field("", pattern="^(large|medium|small|(users|items)/(tail|mid|head))?$")
    least: float | None = Field(None, gt=0)

    @field_validator("metric")
    @classmethod
    def _require_metric(cls, metric: str) -> str:
        if metric not in METRICS:
            raise ValueError(f"expected one of {', '.join(METRICS)}, got {metric!r}")
        return metric

    @field_validator("least")
    @classmethod
    def _of_the_floors(cls, least: float | None, info: ValidationInfo) -> float | None:
        if least is not None and info.data.get("over") != (FLOORS,):
            raise ValueError(f'expected over = ["{FLOORS}"] beside it')
        return least


class Paper(Part):
    """Figures and claims of the paper for one table.

    columns: column to row to figures by name (recall, ndcg, tail, epoch, ...). notes: differences, in words.
    """

    source: str
    claims: tuple[Claim, ...] = ()
    columns: dict[str, dict[str, dict[str, Any]]] = Field({})
    notes: tuple[str, ...] = ()

    def find_figure(self, column: str, row: str, name: str) -> Any | None:
        """Returns a figure of the paper, or None if the paper has none."""
        return self.columns.get(column, {}).get(row, {}).get(name)


def read_paper(name: str, root: Path = ROOT) -> Paper:
    """Reads the paper's figures for a table; empty without a paper.toml."""
    path = root / name / "paper.toml"
    if not path.exists():
        return Paper(source="not in the paper")
    return validate_settings(Paper, read_toml(path))


OFFERS = ("run", "measure", "extra", "render", "check", "claims")
Function = Callable[..., Any]


def special_functions(name: str, root: Path = ROOT) -> dict[str, Function]:
    """Returns the functions of a table's run.py by name; empty without one."""
    path = root / name / "run.py"
    if not path.is_file():
        return {}
    module = _load_module(name, path)
    return {offer: getattr(module, offer) for offer in OFFERS if hasattr(module, offer)}


def _load_module(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"benchmarks.{name}.run", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules.setdefault(specification.name, module)  # where a dataclass looks up the types of its fields
    specification.loader.exec_module(module)
    return module


def is_own_table(name: str, root: Path = ROOT) -> bool:
    """Tells whether run.py measures the table as a whole."""
    return not {"blocks", "like"} & _read_table_config(name, root).keys()


def title_of(name: str, root: Path = ROOT) -> str:
    """Returns the title in config.toml, or the folder's name."""
    return str(_read_table_config(name, root).get("title", name))


def run_own_table(name: str, *, quick: bool, data: Path | None, out: Path, root: Path = ROOT) -> list[dict[str, Any]]:
    """Runs a table that its run.py measures as a whole; returns its rows."""
    offers, config = special_functions(name, root), _read_table_config(name, root)
    if "run" not in offers:
        raise SettingsError(f"{root / name}: expected blocks in config.toml, or a function run in run.py, got neither")
    small = config.pop("quick", {})
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = offers["run"](
        overlay_config(config, small) if quick else config, quick=quick, data=data, out=out
    )
    return rows


def overlay_config(whole: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lays the values of `over` on `whole`, also within common tables."""
    both = {
        key: overlay_config(whole[key], over[key]) for key in whole.keys() & over.keys() if isinstance(whole[key], dict)
    }
    return {**whole, **over, **both}


def _read_table_config(name: str, root: Path) -> dict[str, Any]:
    return read_toml(root / name / "config.toml")
