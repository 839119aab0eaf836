"""Measures seconds and peak memory from a shard's Parquet files to its first model.

That model is served in closed form, before any training.

python benchmarks/speed/first_model.py SHARD [--threads 1] [--json]

What is measured is a run as a client begins it. read: the shard and its matrices. spectrum: its low frequencies.
publish: the shard is compiled and published. filter: the choice of the filter at which training starts. recipe: the
choice of what is fused with it. model: the model and its fusion from both. serve: its lists are judged, it is kept on
the disk, compiled and published, so that it answers; a smaller form of it and lists of known users are made afterwards,
and not counted. Beside seconds stands a calibration of the same run, so that figures of two machines can be compared:
products of matrices, and copies of memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.common import render_table
from client_service.compilation.item_publisher import ItemPublisher
from client_service.compiled.publication import SERVING
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.federation.training_run import TrainingRun
from client_service.runtime.device import pin_threads
from client_service.serving.recommender import Recommender
from client_service.tasks import items
from client_service.tasks.task import RunContext
from client_service.training import start_choice
from shared.cores import available_cores
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.method.tensors import EXCHANGES, initial_parameters

MIB = 1 << 20
SIDE, PRODUCTS = 1024, 40  # of the matrices that calibrate, 86 GFLOP in all
COPIED, COPIES = 256 * MIB, 8
WATCHED = (
    ("spectrum", items, "cached_spectrum"),
    ("filter", start_choice, "best_filter"),
    ("recipe", start_choice, "best_recipe"),
)


@dataclass
class Phase:
    """Measurements of one phase; peak: MiB of this process."""

    name: str
    wall: float
    cpu: float
    peak: float


@dataclass
class Stopwatch:
    """Phases in the order in which they end, without phases within them."""

    phases: list[Phase] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a context as this phase."""
        known = len(self.phases)
        forget_peak()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        inner = self.phases[known:]
        wall = time.perf_counter() - wall - sum(one.wall for one in inner)
        cpu = time.process_time() - cpu - sum(one.cpu for one in inner)
        self.phases.append(Phase(name, wall, cpu, peak_memory()))
        forget_peak()

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function, each call of which is this phase."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return timed


def forget_peak() -> None:
    """Resets the system's peak memory of this process, where possible."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory() -> float:
    """Returns the peak MiB since the reset; 0 if the system does not record it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0


def calibrate() -> dict[str, float]:
    """Measures CPU seconds of a fixed amount of each kind of work."""
    left, right = np.random.default_rng(0).random((2, SIDE, SIDE), dtype=np.float32)
    began = time.process_time()
    for _ in range(PRODUCTS):
        left @ right
    products = time.process_time() - began
    source, target = np.ones(COPIED // 4, np.float32), np.ones(COPIED // 4, np.float32)
    began = time.process_time()
    for _ in range(COPIES):
        np.copyto(target, source)
    return {"gemm": products, "copy": time.process_time() - began}


def read(folder: Path) -> Shard:
    """Reads the shard and its matrices."""
    shard = load_shard(folder)
    assert shard.train.nnz
    assert shard.valid.shape == shard.train.shape
    return shard


def begin(shard: Shard, folder: Path, watch: Stopwatch) -> tuple[Recommender, TrainingRun]:
    """Begins a run as a client does.

    The model of round 0 is served at its end.
    """
    method = method_settings()
    place = RunContext(shard.name, "run-1", 0, method, folder)
    with watch.phase("publish"):
        publisher = ItemPublisher(shard, folder / SERVING)
        recommender = Recommender(publisher.compiled, publisher=publisher)
    with watch.phase("model"):
        run = TrainingRun(place, items.ITEMS, shard, recommender, torch.device("cpu"))
    tensors = sorted(EXCHANGES[method.model].tensors(method))
    with watch.phase("serve"):
        run.begin(Parameters(initial_parameters(tensors, 0, exact=True)), 0)
    recommender.close()
    return recommender, run


def measure(folder: Path) -> tuple[list[Phase], str, float]:
    """Measures the phases; returns the served version and its primary measure.

    The measure is on validation items.
    """
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as kept:
        with watch.phase("read"):
            shard = read(folder)
        patches = [
            patch.object(module, name, watch.watched(phase, getattr(module, name))) for phase, module, name in WATCHED
        ]
        for one in patches:
            one.start()
        try:
            recommender, run = begin(shard, Path(kept), watch)
        finally:
            for one in patches:
                one.stop()
    assert recommender.served is not None
    quality = run.quality.rounds[0].values["ndcg"]
    return watch.phases, recommender.served.version, quality


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="of linear algebra, as the client's setting")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    pin_threads(given.threads)
    units = calibrate()
    phases, version, quality = measure(given.shard)
    total = Phase("all", sum(p.wall for p in phases), sum(p.cpu for p in phases), max(p.peak for p in phases))
    rows = [*phases, total]
    if given.json:
        about = {"cores": available_cores(), "calibration": units, "served": version, "validation": quality}
        print(json.dumps({**about, "phases": [asdict(one) for one in rows]}, indent=1))
        return
    calibration = f"{PRODUCTS} products {units['gemm']:.2f} s, {COPIES} copies {units['copy']:.2f} s of CPU"
    print(f"{available_cores()} cores; {calibration}")
    lines = [[p.name, f"{p.wall:.2f}", f"{p.cpu:.2f}", f"{p.cpu / units['gemm']:.1f}", f"{p.peak:,.0f}"] for p in rows]
    print(render_table(["phase", "wall s", "CPU s", "of 40 products", "peak MiB"], lines))
    print(f"served: {version}, NDCG@20 on validation items {quality:.4f}")


if __name__ == "__main__":
    main()
