"""Runs cells, one process each, here or as Ray tasks, and writes lines of results.

Known cells are skipped, and each line is on the disk at once. On a cluster each cell has one CPU: the node gets the
shards through the object store and runs the same child process that a cell has on one machine.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.cells import Cell, settings_hash
from benchmarks.harness.data import Cache, shard_digests
from benchmarks.harness.plan import REVISION, ROOT
from benchmarks.harness.store import FILE, OWN, SHARED, KnownLines, Line, append_line
from client_service.runtime.device import DeviceChoice
from shared.errors import FederationError, UnavailableError
from simulation.engines.ray_engine import RayCluster
from simulation.engines.run_folders import Files, FolderChanges, read_files, write_changes
from simulation.partitioning.sources import Shards
from simulation.reports.terminal import ERR, count_bar

Launch = Callable[[dict[str, Any], Path, float], dict[str, Any]]
"""(work of a cell, a scratch folder, seconds that it may take) -> its figures. FederationError if it fails."""


@contextmanager
def cluster_launch(cluster: RayCluster, run_child: Launch) -> Iterator[tuple[Launch, int]]:
    """Yields a launcher of cells on the cluster, and how many run at once."""
    with cluster.connected() as ray:
        cells = _ClusterCells(ray, run_child)
        yield cells.launch, max(1, int(ray.cluster_resources().get("CPU", 1)))


class _ClusterCells:
    """Launcher on a cluster that stores each shard once, for any number of cells."""

    def __init__(self, ray: Any, run_child: Launch) -> None:
        self._ray, self._run_child = ray, run_child
        self._task, self._stored = ray.remote(measure_on_node), dict[str, Any]()

    def launch(self, work: dict[str, Any], folder: Path, limit_seconds: float) -> dict[str, Any]:
        """Measures a cell on a node."""
        del folder  # its files are on the node
        given = self._store([*work["shards"], work["whole"]])
        reference = self._task.options(num_cpus=1, max_retries=0).remote(self._run_child, work, *given, limit_seconds)
        errors = self._ray.exceptions
        try:
            figures: dict[str, Any] = self._ray.get(reference)
            return figures
        except errors.RayTaskError as error:
            raise FederationError(f"on the cluster: {error.cause}") from None
        except errors.RayError as error:
            raise UnavailableError(f"the cell's node has ended ({type(error).__name__})") from None

    def _store(self, paths: Sequence[str]) -> tuple[Any, Any]:
        whole = self._put(paths[-1], lambda: read_files(Path(paths[-1])))
        shards = self._put(
            "\n".join(paths[:-1]), lambda: {Path(path).name: read_files(Path(path)) for path in paths[:-1]}
        )
        return shards, whole

    def _put(self, name: str, read: Callable[[], Any]) -> Any:
        if name not in self._stored:
            self._stored[name] = self._ray.put(read())
        return self._stored[name]


def measure_on_node(
    run_child: Launch, work: dict[str, Any], shards: Mapping[str, Files], whole: Files, limit_seconds: float
) -> dict[str, Any]:
    """Measures a cell in a child process of this node.

    Results that follow from the shards stay beside them there, for the next cell that has them.
    """
    paths = keep_on_node({**{f"shards/{name}": files for name, files in shards.items()}, "whole": whole})
    with tempfile.TemporaryDirectory(prefix="lpsfed-cell-") as place:
        folder = Path(place)
        here = {
            "root": str(ROOT),
            "shards": [str(paths / "shards" / name) for name in shards],
            "whole": str(paths / "whole"),
            "state": str(folder / "state"),
            "out": str(folder / "figures.json"),
        }
        return run_child({**work, **here}, folder, limit_seconds)


def keep_on_node(parts: Mapping[str, Files]) -> Path:
    """Writes folders into this node's temporary folder, under their content's digest.

    An existing folder is used as it is.
    """
    total = hashlib.sha256()
    for part, files in sorted(parts.items()):
        for name, content in sorted(files.items()):
            total.update(f"{part}/{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    folder = Path(tempfile.gettempdir()) / f"lpsfed-shards-{total.hexdigest()[:16]}"
    if not (folder / "whole").is_dir():  # written last
        for part in sorted(parts):
            write_changes(folder / part, FolderChanges(parts[part]))
    return folder


@dataclass(frozen=True)
class Bench:
    """Places of a benchmark.

    results: folder with one folder per table, for their results.jsonl. launch: how a cell's process is run; None: on
    this machine.
    """

    cache: Cache
    results: Path
    root: Path = ROOT
    device: DeviceChoice = "auto"
    jobs: int = 1
    limit_seconds: float = 6 * 3600.0
    launch: Launch | None = None


@dataclass(frozen=True)
class Failure:
    """Cell without figures, and the reason."""

    cell: Cell
    reason: str


def run_cells(bench: Bench, cells: Sequence[Cell], known: KnownLines, *, shown: bool) -> list[Failure]:
    """Measures the cells that are not known yet, and adds them to `known`.

    An interrupt keeps all finished cells; the same command resumes.
    """
    failures = [Failure(cell, why) for cell in cells if (why := cell.problem or bench.cache.data_problem(cell.data))]
    failed = {id(failure.cell) for failure in failures}
    wanted = _distinct_cells(
        [cell for cell in cells if id(cell) not in failed and not _is_measured(bench, cell, known)]
    )
    with count_bar("cells", len(wanted), shown=shown) as done, _worker_pool(bench.jobs) as start:
        futures: dict[Future[Line], Cell] = {}
        for cell in wanted:
            try:
                shards = bench.cache.shards(cell.data, cell.block, cell.partition)
                futures[start(run_cell, bench, cell, shards)] = cell
            except FederationError as error:
                failures.append(Failure(cell, str(error)))
        for future in as_completed(futures):
            cell = futures[future]
            try:
                line = future.result()
            except FederationError as error:
                failures.append(Failure(cell, str(error)))
                ERR.print(f"{cell.name}: {error}", style="red", highlight=False, markup=False)
            else:
                append_line(bench.results / cell.table / FILE, line)
                known.add_line(line)
            done(cell.name)
    return failures


def _is_measured(bench: Bench, cell: Cell, known: KnownLines) -> bool:
    """Tells whether there is a line of the cell on the current shards.

    They are cut where the line has their digests.
    """
    try:
        line = known.find_line(
            cell, lambda: shard_digests(bench.cache.shards(cell.data, cell.block, cell.partition).paths)
        )
    except FederationError:
        return False  # the data cannot be cut: measuring will say so
    return line is not None


def _distinct_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Removes cells that differ only in their labels, such as defaults in a sweep."""
    by_outcome = {(cell.identity(), settings_hash(cell.outcome_settings())): cell for cell in reversed(cells)}
    return list(reversed(by_outcome.values()))


@contextmanager
def _worker_pool(jobs: int) -> Iterator[Callable[..., Future[Line]]]:
    """Yields a function that starts work in threads, one per child process.

    An interrupt starts no further work.
    """
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool.submit
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_cell(bench: Bench, cell: Cell, shards: Shards) -> Line:
    """Measures one cell in its own process; raises FederationError if it fails.

    The error has the last line of its log.
    """
    assert cell.method is not None, "expected a cell that can be measured"
    scratch = bench.cache.folder / "state"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        folder = Path(place)
        work = {
            "table": cell.table,
            "root": str(bench.root),
            "shards": [str(path.resolve()) for path in shards.paths],
            "whole": str(bench.cache.cut_whole(cell.data, cell.block).resolve()),
            "state": str((folder / "state").resolve()),
            "strategy": cell.row.strategy,
            "method": cell.method.model_dump(mode="json"),
            "rounds": cell.rounds,
            "seed": cell.seed,
            "groups": cell.groups,
            "extra": bool(cell.special) and cell.row.strategy != "run.py",
            "own_cache": cell.timed,
            "privacy": cell.row.privacy,
            "device": bench.device,
            "parameters": cell.row.method,
            "out": str((folder / "figures.json").resolve()),
        }
        figures = (bench.launch or run_child)(work, folder, bench.limit_seconds)
    return {**line_head(bench, cell, shards), **figures}


def run_child(work: dict[str, Any], folder: Path, limit_seconds: float) -> dict[str, Any]:
    """Measures a cell in a child process; raises FederationError if it fails.

    The error has the last line of its log.
    """
    command = [sys.executable, "-m", "benchmarks.harness.child"]
    with (folder / "log").open("w", encoding="utf-8") as log:
        try:
            ended = subprocess.run(
                command,
                input=json.dumps(work),
                text=True,
                cwd=ROOT.parent,
                stdout=log,
                stderr=log,
                timeout=limit_seconds,
            ).returncode
        except subprocess.TimeoutExpired:
            ended = None
    if ended != 0:
        last = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        how = f"had not ended after {limit_seconds:.0f} s" if ended is None else f"ended with {ended}"
        raise FederationError(f"the cell's process {how}: {' '.join(last)[:500]}")
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    return figures


def line_head(bench: Bench, cell: Cell, shards: Shards) -> Line:
    """Describes the measured cell and its settings, independent of the plan."""
    settings = cell.outcome_settings()
    return {
        "identity": cell.identity(),
        "hash": settings_hash(settings),
        "settings": settings,
        "table": cell.table,
        "column": cell.column,
        "data": cell.data,
        "cut": cell.block.cut,
        "fewest": cell.block.fewest,
        **({"overlap": [cell.block.overlap, cell.block.overlap_of]} if cell.block.overlap < 1 else {}),
        "partition": cell.partition,
        "seed": cell.seed,
        "label": cell.row.label,
        "strategy": cell.row.strategy,
        "rounds": cell.rounds,
        "epochs": cell.rounds * (cell.method.local_epochs if cell.method else 0),
        "edges_kept": shards.edges_kept,
        "revision": REVISION,
        "digests": list(shard_digests(shards.paths)),
        "jobs": bench.jobs,
        "cache": OWN if cell.timed else SHARED,
    }
