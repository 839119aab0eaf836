"""Metrics of all workers that share a port, whichever of them answers.

A worker writes its series to a file in its state directory, regularly and before it answers. An answer adds up the
files of all workers, so that no series goes down between two answers of different workers. A worker that takes the
place of a dead one goes on from that one's counts, which so stand once; those of the last SECONDS are lost.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from prometheus_client import CollectorRegistry, Metric, generate_latest

SECONDS = 2.0  # between two writes
FRESH_SECONDS = 10.0  # age of a file whose worker may still hold streams, or be ready
FILE = "metrics.json"
GAUGES: dict[str, Callable[[Iterable[float]], float]] = {"streams": sum, "ready": min, "disk_refuses": max}
"""How the gauges of living workers become one, by the end of their name; any other is the answering worker's own."""

ENDS = {
    "counter": ("_total", "_created"),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "gauge": ("",),
}
"""Ends of the names of a family's series, by its type."""

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]


@dataclass(frozen=True)
class WrittenSeries:
    """Series of one worker: sums that only grow, times of their beginning, and gauges."""

    grown: dict[Key, float]
    created: dict[Key, float]
    gauges: dict[Key, float]

    def text(self) -> str:
        return json.dumps([list(part.items()) for part in (self.grown, self.created, self.gauges)])

    @staticmethod
    def read(text: str) -> WrittenSeries:
        parts = (
            {(name, tuple(map(tuple, labels))): value for (name, labels), value in part} for part in json.loads(text)
        )
        return WrittenSeries(*parts)


class WorkerMetrics:
    """Series of one of several workers, and of all.

    directory: the worker's state directory, beside those of the others.
    """

    def __init__(self, registry: CollectorRegistry, directory: Path) -> None:
        self._registry, self._file = registry, directory / FILE
        self._before = _read(self._file) or WrittenSeries({}, {}, {})

    async def keep_written(self) -> None:
        """Writes the series regularly, until cancelled."""
        while True:
            self.write()
            await anyio.sleep(SECONDS)

    def write(self) -> None:
        """Writes the series of this worker, with those of the worker before it.

        A disk without room makes this worker count as silent; its other writes tell so.
        """
        part = self._file.with_suffix(".part")
        with suppress(OSError):
            part.write_text(self._own().text())
            os.replace(part, self._file)

    def text(self) -> bytes:
        """Returns the series of all workers in the text format of Prometheus."""
        self.write()
        others = [path for path in self._file.parent.parent.glob(f"worker-*/{FILE}") if path != self._file]
        return generate_latest(_Joined(self._registry, self._own(), list(_read_all(others))))

    def _own(self) -> WrittenSeries:
        own = WrittenSeries({}, {}, {})
        for family in self._registry.collect():
            for name, labels, value, *_ in family.samples:
                part = own.gauges if family.type == "gauge" else own.created if name.endswith("_created") else own.grown
                part[name, tuple(sorted(labels.items()))] = value
        grown, created = _add([own.grown, self._before.grown]), _earliest([own.created, self._before.created])
        return WrittenSeries(grown, created, own.gauges)


class _Joined(CollectorRegistry):
    """Families of the answering worker with the series of all."""

    def __init__(
        self, registry: CollectorRegistry, own: WrittenSeries, others: list[tuple[WrittenSeries, bool]]
    ) -> None:
        super().__init__()
        self._families = registry
        every = [own, *(one for one, _ in others)]
        fresh = [own, *(one for one, is_fresh in others if is_fresh)]
        self._grown, self._created = _add(one.grown for one in every), _earliest(one.created for one in every)
        self._gauges = {key: _join_gauge(key, value, fresh) for key, value in own.gauges.items()}

    def collect(self) -> Iterator[Metric]:
        values = self._grown | self._created | self._gauges
        for family in self._families.collect():
            joined = Metric(family.name, family.documentation, family.type)
            names = {f"{family.name}{one}" for one in ENDS[family.type]}
            for (name, labels), value in values.items():
                if name in names:
                    joined.add_sample(name, dict(labels), value)
            yield joined


def _join_gauge(key: Key, value: float, fresh: list[WrittenSeries]) -> float:
    for end, join in GAUGES.items():
        if key[0].endswith(f"_{end}"):
            return join(one.gauges[key] for one in fresh if key in one.gauges)
    return value


def _add(parts: Iterable[dict[Key, float]]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for part in parts:
        for key, value in part.items():
            found[key] = found.get(key, 0.0) + value
    return found


def _earliest(parts: Iterable[dict[Key, float]]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for part in parts:
        for key, value in part.items():
            found[key] = min(value, found.get(key, value))
    return found


def _read(path: Path) -> WrittenSeries | None:
    try:
        return WrittenSeries.read(path.read_text())
    except (OSError, TypeError, ValueError):
        return None


def _read_all(paths: Iterable[Path]) -> Iterator[tuple[WrittenSeries, bool]]:
    """Reads the files of other workers, and tells which were written lately."""
    for path in sorted(paths):
        if (found := _read(path)) is not None:
            try:
                yield found, time.time() - path.stat().st_mtime < FRESH_SECONDS
            except FileNotFoundError:
                continue


def forget_workers(folder: Path) -> None:
    """Removes the files of workers of an earlier start."""
    for path in folder.glob(f"worker-*/{FILE}"):
        path.unlink()
