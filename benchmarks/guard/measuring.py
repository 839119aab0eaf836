"""Times of work relative to fixed work, independent of the processor's speed."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.guard.silo import GeneratedSilo

Work = Callable[[], Awaitable[None]]

SIDE = 768
HASHED = 16_000_000


def matrix_product() -> Work:
    """Returns the calibration of dense linear algebra: a product of two 768 x 768 matrices."""
    left, right = np.random.default_rng(0).standard_normal((2, SIDE, SIDE), dtype=np.float32)

    async def multiply() -> None:
        np.matmul(left, right)

    return multiply


def hashing() -> Work:
    """Returns the calibration of storing and checking bodies: hashing 16 MB."""
    content = bytes(HASHED)

    async def hash_content() -> None:
        hashlib.sha256(content)

    return hash_content


CALIBRATIONS = 3  # of each repetition: they are short


@dataclass(frozen=True)
class Figure:
    """Measured ratio to a unit; `text` is the same in milliseconds or MiB."""

    name: str
    ratio: float
    unit: str
    text: str


@dataclass(frozen=True)
class TimedWork:
    """Work that repeats a task `count` times, with its calibration.

    The calibration repeats its own task `calibration_count` times; unit: its name.
    """

    name: str
    work: Work
    calibration: Work
    unit: str
    repetitions: int
    count: float = 1
    calibration_count: float = 1


@dataclass(frozen=True)
class PreparedWork:
    """Timed works, counts and the memory of one process.

    mib: divisor of its memory, named by `memory_unit`; 0: its memory is no figure. peak_mib: MiB of another process;
    None: of this one. counted: figures that need no time, such as numbers of calls.
    """

    timed: tuple[TimedWork, ...]
    mib: float = 0.0
    memory_unit: str = ""
    peak_mib: float | None = None
    counted: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class GuardedPart:
    """Part of the project that is measured in a process of its own.

    prepare: gets the silo and a folder.
    """

    name: str
    prepare: Callable[[GeneratedSilo, Path], AbstractAsyncContextManager[PreparedWork]]


Preparing = AsyncIterator[PreparedWork]


async def measure_time(timed: TimedWork) -> Figure:
    """Measures the smallest processor time of the work over that of its calibration."""
    taken = unit = math.inf
    for _ in range(timed.repetitions):
        for _ in range(CALIBRATIONS):
            unit = min(unit, await processor_seconds(timed.calibration) / timed.calibration_count)
        taken = min(taken, await processor_seconds(timed.work) / timed.count)
    return Figure(timed.name, taken / unit, timed.unit, f"{1e3 * taken:.3g} ms")


async def processor_seconds(work: Work) -> float:
    """Measures the processor time of all threads of this process."""
    before = time.process_time()
    await work()
    return time.process_time() - before


async def measure_part(part: GuardedPart, silo: GeneratedSilo, folder: Path) -> list[Figure]:
    """Measures all figures of a part, with its peak memory beyond the loaded libraries."""
    before = memory_mib()
    async with part.prepare(silo, folder) as prepared:
        times = [await measure_time(timed) for timed in prepared.timed]
        mib = memory_mib() - before if prepared.peak_mib is None else prepared.peak_mib
    found = [*times, *prepared.counted]
    if not prepared.mib:
        return found
    return [*found, Figure(f"memory: {part.name}", mib / prepared.mib, prepared.memory_unit, f"{mib:.0f} MiB")]


def memory_mib() -> float:
    """Returns the peak memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
