"""Command `python -m benchmarks guard`: measures all parts and compares with committed figures.

Each part runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from benchmarks.common import ROOT, render_table
from benchmarks.guard.learning import prepare_epoch, prepare_first_model
from benchmarks.guard.measuring import Figure, GuardedPart, PreparedWork, Preparing, measure_part
from benchmarks.guard.rounds import prepare_round
from benchmarks.guard.serving import prepare_server, prepare_serving
from benchmarks.guard.silo import GeneratedSilo, make_silo
from benchmarks.speed.request_cost import count_calls
from client_service.runtime.device import pin_threads
from shared.errors import SettingsError

P = ParamSpec("P")
T = TypeVar("T")
COMMITTED = ROOT / "guard" / "committed.json"
BOUND = 1.7  # times the committed figure: beyond it for twice as slow, within it for noise
TRIES = 3  # a figure that is beyond its bound is measured again, and the least counts
COUNTED = 25  # requests of each kind whose calls are counted
THOUSAND = "1,000 calls"


@asynccontextmanager
async def prepare_requests(silo: GeneratedSilo, folder: Path) -> Preparing:
    """Counts the Python and C calls of a silo's requests at the aggregator."""
    del silo, folder
    found = await asyncio.to_thread(count_calls, COUNTED)  # in a thread, because it runs an event loop of its own
    calls = {f"calls of a request: {kind}": calls for kind, calls in found.items()}
    yield PreparedWork(
        (), counted=tuple(Figure(name, one / 1000, THOUSAND, f"{one:,.0f} calls") for name, one in calls.items())
    )


PARTS = (
    GuardedPart("first model", prepare_first_model),
    GuardedPart("epoch", prepare_epoch),
    GuardedPart("serving", prepare_serving),
    GuardedPart("server", prepare_server),
    GuardedPart("round", prepare_round),
    GuardedPart("requests", prepare_requests),
)


def guard(*, write: bool) -> int:
    """Prints the figures and compares them with their bounds; 1 if one is beyond.

    write: commits them to the file instead.
    """
    committed = {} if write else read_committed()
    with tempfile.TemporaryDirectory() as place:
        silo = _run_in_child(make_silo, Path(place))
        measures = [partial(_measure_in_child, part, silo, Path(place)) for part in PARTS]
        found = [figure for measure in measures for figure in measure_until_within(measure, committed)]
    print(_as_table(found, committed))
    if write:
        COMMITTED.write_text(json.dumps({one.name: round(one.ratio, 4) for one in found}, indent=1) + "\n", "utf-8")
        print(f"written: {COMMITTED}")
        return 0
    wrong = complaints(found, committed)
    print("\n".join(f"guard: {what}" for what in wrong) if wrong else "guard: all within their bounds")
    return int(bool(wrong))


def read_committed(path: Path = COMMITTED) -> dict[str, float]:
    """Reads the committed ratio of each figure.

    Raises SettingsError if the file cannot be read.
    """
    try:
        found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: expected what `python -m benchmarks guard --write` writes ({error})") from None
    return found


def complaints(found: Sequence[Figure], committed: Mapping[str, float]) -> list[str]:
    """Lists figures beyond their bound, and figures missing on either side."""
    wrong = [complaint for figure in found if (complaint := _complaint(figure, committed))]
    missing = sorted(committed.keys() - {figure.name for figure in found})
    return wrong + [f"{name}: expected a figure, as one is committed, got none" for name in missing]


def _complaint(figure: Figure, committed: Mapping[str, float]) -> str | None:
    before = committed.get(figure.name)
    if before is None:
        return f"{figure.name}: expected a committed value, got none; python -m benchmarks guard --write"
    if figure.ratio <= BOUND * before:
        return None
    expected = f"expected at most {BOUND * before:.3g} times {figure.unit} ({before:.3g} is committed)"
    times = figure.ratio / before if before else math.inf  # memory below what the process held before is 0
    return f"{figure.name}: {expected}, got {figure.ratio:.3g}, {times:.2f} times as much as committed"


def measure_until_within(measure: Callable[[], list[Figure]], committed: Mapping[str, float]) -> list[Figure]:
    """Measures until all figures are within their bounds, at most TRIES times; returns the smallest."""
    best: dict[str, Figure] = {}
    for _ in range(TRIES):
        for figure in measure():
            best[figure.name] = min(figure, best.get(figure.name, figure), key=lambda one: one.ratio)
        if all(_complaint(figure, committed) is None for figure in best.values()):
            break
    return list(best.values())


def _measure_in_child(part: GuardedPart, silo: GeneratedSilo, folder: Path) -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return _run_in_child(_measure_here, part, silo, Path(own))


def _run_in_child(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work in a fresh process, whose memory is that of this work alone."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


def _measure_here(part: GuardedPart, silo: GeneratedSilo, folder: Path) -> list[Figure]:
    pin_threads(1)
    return asyncio.run(measure_part(part, silo, folder))


def _as_table(found: Sequence[Figure], committed: Mapping[str, float]) -> str:
    head = ("what", "processor time, memory or calls", "ratio", "committed", "to")
    rows = [
        [
            one.name,
            one.text,
            f"{one.ratio:.3g}",
            f"{committed[one.name]:.3g}" if one.name in committed else "-",
            one.unit,
        ]
        for one in found
    ]
    return render_table(head, rows)
