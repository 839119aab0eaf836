"""Cells of a plan: the smallest measured units, with all that determines their outcome."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.plan import CENTRALISED, FLOORS, SPECIAL, Block, Plan, Row
from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy

Settings = dict[str, Any]
ANYTHING = "*"  # the seed of cells without one


@dataclass(frozen=True)
class Cell:
    """One run, the floors, or the centralised model, on one cut of a data set.

    method is None if the row cannot be measured here; `problem` then gives the reason. special: table whose run.py
    has a part in the cell, empty if the harness alone measures it. timed: its seconds are a result, so it runs by
    itself, with caches of its own.
    """

    table: str
    column: str
    block: Block
    data: str
    partition: int
    seed: int
    row: Row
    rounds: int
    groups: bool
    method: MethodSettings | None
    problem: str = ""
    special: str = ""
    timed: bool = False

    @property
    def name(self) -> str:
        """Name of the cell: column, partition, seed and row."""
        return f"{self.column} p{self.partition} s{self.seed} {self.row.label}"

    def identity(self) -> str:
        """Returns the key of all that determines the outcome, except the method's settings.

        The label is not part of it: rows may be renamed.
        """
        seed = ANYTHING if self.row.strategy == FLOORS else str(self.seed)
        block = self.block
        cut = [self.data, str(block.clients), block.cut, str(block.fewest), str(self.partition)]
        if block.overlap < 1:
            cut.append(f"overlap {block.overlap:g} {block.overlap_of}")
        return "/".join([*cut, seed, self.row.strategy, str(self.rounds), *([self.special] if self.special else [])])

    def outcome_settings(self) -> Settings:
        """Returns the flat settings that determine the outcome, such as anchor.graph."""
        assert self.method is not None, "expected a cell that can be measured"
        if self.row.strategy == FLOORS:
            return {"cutoff": self.method.cutoff}
        private = {"privacy": self.row.privacy} if self.row.privacy else {}
        return flatten_settings(self.method.model_dump(mode="json") | private)


def flatten_settings(values: dict[str, Any], prefix: str = "") -> Settings:
    """Flattens nested settings to dotted names."""
    settings: Settings = {}
    for name, value in values.items():
        settings |= (
            flatten_settings(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        )
    return settings


def settings_hash(settings: Settings) -> str:
    """Returns the first 16 hexadecimal digits of the settings' sha256, in any order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def plan_cells(plan: Plan, special: frozenset[str] = frozenset()) -> list[Cell]:
    """Lists all cells of a table, floors first; special: functions of its run.py."""
    return [cell for block in plan.blocks for data in block.data for cell in _column_cells(plan, block, data, special)]


def _column_cells(plan: Plan, block: Block, data: str, special: frozenset[str]) -> Iterator[Cell]:
    floors = Row(label=FLOORS, strategy=FLOORS, method=plan.method)
    for partition in plan.partitions:
        if plan.standing:
            yield _make_cell(plan, (block, data), (partition, 0), floors, special)
        for seed in plan.seeds:
            for row in plan.rows_of(block):
                yield _make_cell(plan, (block, data), (partition, seed), row, special)


def _make_cell(plan: Plan, where: tuple[Block, str], draw: tuple[int, int], row: Row, special: frozenset[str]) -> Cell:
    (block, data), (partition, seed) = where, draw
    method, problem = available_settings(row, special)
    own = row.strategy == SPECIAL or ("extra" in special and row.strategy not in (CENTRALISED, FLOORS))
    return Cell(
        table=plan.name,
        column=block.column_name(data),
        block=block,
        data=data,
        partition=partition,
        seed=seed,
        row=row,
        rounds=0 if row.strategy == FLOORS else row.rounds or plan.rounds,
        groups=plan.groups,
        method=method,
        problem=problem,
        special=plan.name if own else "",
        timed=plan.view == "cost" and row.strategy != FLOORS,
    )


def available_settings(row: Row, special: frozenset[str]) -> tuple[MethodSettings | None, str]:
    """Returns the settings of a row, or None and why it cannot be measured."""
    try:
        method = row.method_settings()
        if row.strategy == SPECIAL and "measure" not in special:
            raise SettingsError("strategy: expected a function measure in the table's run.py, got none")
        if row.strategy not in (SPECIAL, CENTRALISED, FLOORS):
            build_strategy(row.strategy, method)
    except SettingsError as error:
        return None, str(error)
    return method, ""
