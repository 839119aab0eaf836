"""config.toml of a table -> its plan: which data, cuts, methods, partitions and seeds are measured."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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
    """A part of a TOML file: it cannot change, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(Part):
    """One line of a table: a strategy with some settings of the method changed.

    shared_items: the strategy needs items that several clients have. sweep, value: where the row stands in a figure.
    privacy: settings of differential privacy at every client; empty where there is none.
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
        """Raises SettingsError for a setting that is not there, or out of range."""
        return method_settings(self.preset, **self.method)


class Block(Part):
    """Data sets that are cut in one way. fewest: users and items with fewer records are removed before the cut.

    overlap: the share of the items that all silos have in common, those with the most records first or drawn at random;
    every other item is renamed in each silo. rows: the labels that are measured here; empty for all.
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
        """The name of one data set's column; paper.toml uses it too."""
        return f"{self.name}: {data}" if self.name else data


class Plan(Part):
    """A table. standing: it also has the floors, local-only training and the centralised model.

    groups: every cell also ranks by groups of users and of items. reference: the row that others are held against.
    method: settings of every row that does not say otherwise. like: another table whose rows come before the own ones.
    view: what the columns show besides; "special" leaves all that is shown to the table's run.py.
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
        """The rows that are measured in a block's columns."""
        return tuple(row for row in self.rows() if not block.rows or row.label in block.rows)

    def column_names(self) -> list[str]:
        """The names of all columns, in the order of the blocks."""
        return [block.column_name(data) for block in self.blocks for data in block.data]

    def rows(self) -> tuple[Row, ...]:
        """The configured rows, and those that stand in every table."""
        have = {row.label for row in self.methods}
        every = (*self.methods, *(row for row in STANDING if self.standing and row.label not in have))
        return tuple(row.model_copy(update={"method": self.method | row.method}) for row in every)


STANDING = (Row(label="local", strategy="local"), Row(label=CENTRALISED, strategy=CENTRALISED))


def table_names(root: Path = ROOT) -> tuple[str, ...]:
    """Names of all tables: the folders with a config.toml, those of FIRST first, table2 before table10."""
    names = (path.parent.name for path in root.glob("*/config.toml"))
    return tuple(sorted(names, key=lambda name: (name not in FIRST, name.rstrip("0123456789"), len(name), name)))


def read_plan(name: str, *, quick: bool = False, root: Path = ROOT) -> Plan:
    """The plan of one table; with `quick`, its small stand-in. Raises SettingsError naming the file and the field."""
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
    """The content of a TOML file. Raises SettingsError naming the file where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: expected readable TOML ({error})") from None


def _quick_values(path: Path, values: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """`methods` of the quick section are labels of the full one."""
    rows = {row["label"]: row for row in values.get("methods", [])}
    wanted = small.pop("methods", list(rows))
    if missing := [label for label in wanted if label not in rows]:
        raise SettingsError(f"{path}: quick.methods: expected labels of this table, got {missing}")
    return {**values, **small, "methods": [rows[label] for label in wanted]}
