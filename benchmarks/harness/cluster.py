"""Cells of a benchmark as Ray tasks, one CPU each: the node gets the shards through the object store and runs the same
child process that a cell has on one machine."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import ROOT
from shared.errors import FederationError, UnavailableError
from simulation.engines.ray_engine import RayCluster
from simulation.engines.run_folders import Files, FolderChanges, read_files, write_changes

Launch = Callable[[dict[str, Any], Path, float], dict[str, Any]]
"""(work of a cell, a scratch folder, seconds that it may take) -> its figures. FederationError where it fails."""


@contextmanager
def cluster_launch(cluster: RayCluster, run_child: Launch) -> Iterator[tuple[Launch, int]]:
    """A way to run cells on the cluster, and how many at a time it has room for."""
    with cluster.connected() as ray:
        cells = _ClusterCells(ray, run_child)
        yield cells.launch, max(1, int(ray.cluster_resources().get("CPU", 1)))


class _ClusterCells:
    """Shards go into the object store once, whatever number of cells need them."""

    def __init__(self, ray: Any, run_child: Launch) -> None:
        self._ray, self._run_child = ray, run_child
        self._task, self._stored = ray.remote(measure_on_node), dict[str, Any]()

    def launch(self, work: dict[str, Any], folder: Path, limit_seconds: float) -> dict[str, Any]:
        """Have a cell measured on a node."""
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
    """A cell's figures, from a child process of this node. What follows from the shards stays beside them there, for
    the next cell that has them."""
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
    """The folders written into one of this node's temporary folder that is called after their content; as it is where
    it is there already."""
    total = hashlib.sha256()
    for part, files in sorted(parts.items()):
        for name, content in sorted(files.items()):
            total.update(f"{part}/{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    folder = Path(tempfile.gettempdir()) / f"lpsfed-shards-{total.hexdigest()[:16]}"
    if not (folder / "whole").is_dir():  # written last
        for part in sorted(parts):
            write_changes(folder / part, FolderChanges(parts[part]))
    return folder
