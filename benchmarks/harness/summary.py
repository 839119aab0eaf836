"""Summary of a table: samples by column and row, their means, and comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.cells import Cell
from benchmarks.harness.plan import FLOORS, UNTRAINED, Plan
from benchmarks.harness.statistics import Comparison, Pair, Spread, compare_pairs, measure_spread
from benchmarks.harness.store import KnownLines, Line
from client_service.evaluation.metrics import METRICS

Client = dict[str, Any]
"""One client's line of a measured cell; its measures are under the names of METRICS."""


def mean_of_known(values: Iterable[float]) -> float:
    """Computes the mean of the values that are not NaN; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def user_mean(clients: Sequence[Client], metric: str) -> float:
    """Computes the mean of a metric over all test users; NaN if unknown."""
    if any("test_users" not in client for client in clients):
        return math.nan
    tested = [client for client in clients if client["test_users"]]
    users = sum(client["test_users"] for client in tested)
    return math.fsum(client[metric] * client["test_users"] for client in tested) / users if users else math.nan


@dataclass(frozen=True)
class Sample:
    """One measured cell of one row, with the figures of every client.

    NaN for a client without test users. seed is None for a floor.
    """

    partition: int
    seed: int | None
    clients: list[Client]
    line: Line

    def client_mean(self, metric: str) -> float:
        """Computes the mean of a metric over the clients with test users."""
        return mean_of_known(client[metric] for client in self.clients)

    def by_client(self, metric: str) -> dict[str, float]:
        """Returns the values of a metric by client."""
        return {client["client"]: client[metric] for client in self.clients}

    def user_mean(self, metric: str) -> float:
        """Computes the mean of a metric over all test users; NaN if unknown."""
        return user_mean(self.clients, metric)


Mean = Callable[[Sample, str], float]
"""Function that computes the mean of a metric over a sample."""


@dataclass
class Column:
    """One data set in one cut.

    rows: label to samples, floors first. measured, wanted: numbers of cells.
    """

    name: str
    data: str
    rows: dict[str, list[Sample]] = field(default_factory=dict)
    floors: set[str] = field(default_factory=set)
    measured: int = 0
    wanted: int = 0
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        """Metrics that every sample has: older samples lack younger metrics."""
        clients = [client for samples in self.rows.values() for sample in samples for client in sample.clients]
        return [metric for metric in METRICS if all(metric in client for client in clients)]

    def row_spread(self, label: str, metric: str, mean: Mean = Sample.client_mean) -> Spread:
        """Computes mean and deviation of a row's samples, by client mean or another."""
        return measure_spread([mean(sample, metric) for sample in self.rows[label]])

    def by_partition(self, label: str, metric: str, mean: Mean = Sample.client_mean) -> dict[int, float]:
        """Computes a row's mean in each partition over seeds; empty if not measured."""
        means: dict[int, list[float]] = {}
        for sample in self.rows.get(label, []):
            if not math.isnan(value := mean(sample, metric)):
                means.setdefault(sample.partition, []).append(value)
        return {partition: _mean_value(values) for partition, values in means.items()}

    def best_floors(self, metric: str, mean: Mean = Sample.client_mean) -> dict[int, float]:
        """Returns the highest floor of each partition."""
        best: dict[int, float] = {}
        for label in sorted(self.floors):
            for partition, value in self.by_partition(label, metric, mean).items():
                best[partition] = max(value, best.get(partition, value))
        return best

    def best_floor(self, metric: str) -> float | None:
        """Returns the mean of each partition's best floor; None without floors."""
        return _mean_value([*self.best_floors(metric).values()]) if self.best_floors(metric) else None

    def mean_ratio(
        self, label: str, metric: str, to: Mapping[int, float], mean: Mean = Sample.client_mean
    ) -> float | None:
        """Computes a row's ratio to `to`, over common partitions; None without any."""
        own = self.by_partition(label, metric, mean)
        shared = [partition for partition in own if partition in to]
        base = math.fsum(to[partition] for partition in shared)
        return math.fsum(own[partition] for partition in shared) / base if base else None

    def pair_rows(self, own: str, other: str, figures: Callable[[Sample], Mapping[str, float]]) -> Pair:
        """Returns two rows by unit, each averaged over common seeds.

        A floor has no seed, and is compared with all.
        """
        both = self.rows[own], self.rows[other]
        if any(sample.seed is None for samples in both for sample in samples):
            return average_by_unit(both[0], figures), average_by_unit(both[1], figures)
        draws = [{(sample.partition, sample.seed) for sample in samples} for samples in both]
        common = [
            [sample for sample in samples if (sample.partition, sample.seed) in draws[0] & draws[1]] for samples in both
        ]
        return average_by_unit(common[0], figures), average_by_unit(common[1], figures)

    def compare_rows(self, reference: str, metric: str) -> dict[str, Comparison]:
        """Compares the reference row with each other row.

        A row of the same runs is left out.
        """
        if reference not in self.rows:
            return {}
        own = {id(sample.line) for sample in self.rows[reference]}
        others = [label for label, samples in self.rows.items() if {id(sample.line) for sample in samples} != own]
        return compare_pairs(
            {label: self.pair_rows(reference, label, lambda sample: sample.by_client(metric)) for label in others}
        )


def average_by_unit(
    samples: Sequence[Sample], figures: Callable[[Sample], Mapping[str, float]]
) -> dict[Hashable, float]:
    """Averages figures by (partition, client) over the seeds, without NaN."""
    by_unit: dict[Hashable, list[float]] = {}
    for sample in samples:
        for client, value in figures(sample).items():
            if not math.isnan(value):
                by_unit.setdefault((sample.partition, client), []).append(value)
    return {unit: _mean_value(values) for unit, values in by_unit.items()}


def _mean_value(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def summarise_plan(plan: Plan, cells: Sequence[Cell], known: KnownLines) -> list[Column]:
    """Summarises all columns of a plan, also those without a measured cell."""
    columns = {cell.column: Column(cell.column, cell.data) for cell in cells}
    for cell in cells:
        column, line = columns[cell.column], known.find_line(cell)
        column.wanted += 1
        if cell.problem:
            column.problems[cell.row.label] = cell.problem
        if line is not None:
            column.measured += 1
            _add_samples(column, cell, line)
    order = [row.label for row in plan.rows()]
    for column in columns.values():
        column.rows = dict(sorted(column.rows.items(), key=lambda item: _row_order(item[0], column.floors, order)))
    return list(columns.values())


def _row_order(label: str, floors: set[str], order: list[str]) -> tuple[int, int]:
    """Orders rows: floors, rows of every table, then as configured."""
    if label in floors:
        return 0, 0
    return (1, 0) if label in (UNTRAINED, "local", "centralised") else (2, order.index(label))


def _add_samples(column: Column, cell: Cell, line: Line) -> None:
    rows = line["floors"] if cell.row.strategy == FLOORS else {cell.row.label: line["clients"]}
    seed = None if cell.row.strategy == FLOORS else cell.seed
    for label, clients in rows.items():
        if cell.row.strategy == FLOORS and label != UNTRAINED:
            column.floors.add(label)
        if clients:
            tested = [_tested_client(client) for client in clients]
            column.rows.setdefault(label, []).append(Sample(cell.partition, seed, tested, line))
    column.floors &= set(column.rows) | set(rows)


def _tested_client(client: Client) -> Client:
    """Replaces the figures of a client without test users by NaN."""
    return client if client.get("test_users") != 0 else client | dict.fromkeys(METRICS, math.nan)
