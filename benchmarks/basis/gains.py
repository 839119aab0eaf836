"""The folder of a finished run -> what joining gave by how often a silo has an item, and by how much a user has.

Counted on test items, by the lists that the silo serves after the run and by those of its own fused start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.basis.lines import Line, format_ratio, place_of
from benchmarks.common import render_table
from benchmarks.harness.groups import cache_lists, select_columns
from benchmarks.harness.tables import format_number
from client_service.data import Shard, read_shard
from client_service.data.interaction_files import with_places
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY, K
from client_service.evaluation.ranking import TopItems, find_hits
from client_service.federation.best_model import kept_model
from client_service.joining_value.comparison import alone_lists
from client_service.serving.model_store import Served, read_head
from client_service.tasks.items import ITEMS
from shared.errors import DataError
from shared.method.graph import degrees
from simulation.partitioning.catalogue import CATALOGUE

Bounds = Mapping[str, tuple[float, float]]
ITEM_RECORDS: Bounds = {
    "0 to 2 records": (0, 3),
    "3 to 9": (3, 10),
    "10 to 29": (10, 30),
    "30 to 99": (30, 100),
    "100 and more": (100, math.inf),
}
"""Training records that the silo has of an item."""
USER_RECORDS: Bounds = {
    "up to 9 items": (0, 10),
    "10 to 19": (10, 20),
    "20 to 49": (20, 50),
    "50 to 149": (50, 150),
    "150 and more": (150, math.inf),
}
"""Training records of a user."""
Sums = dict[str, list[float]]
"""By group: how many there are, and the sum of their figures alone and together."""


def measure_gains(folder: Path, path: Path) -> dict[str, Sums]:
    """Of one silo of the run in `folder`, with the shard at `path`.

    items: test records of items with so many training records, and how many of them are among the first 20. users: test
    users with so many training records, and the sum of their primary measure. DataError without the kept model.
    """
    shard, tops = _lists_of(folder, path)
    seen = sparse.csr_array(shard.train + shard.valid)
    cached = [cache_lists(shard, top, seen) for top in tops]
    of_users, of_items = degrees(shard.train)
    return {
        "items": {name: _count_found(shard, seen, cached, chosen) for name, chosen in _groups(of_items, ITEM_RECORDS)},
        "users": {name: _sum_quality(shard, seen, cached, chosen) for name, chosen in _groups(of_users, USER_RECORDS)},
    }


def _lists_of(folder: Path, path: Path) -> tuple[Shard, tuple[TopItems, TopItems]]:
    """The shard, and the lists of its own start and of what it serves."""
    models = folder / path.name / "model"
    head = read_head(models)
    if head is None:
        raise DataError(f"{models}: expected the kept model of a finished run, got none")
    shard = with_places(read_shard(path), folder / CATALOGUE, head.method.catalogue, partly=True)
    served = kept_model(ITEMS, shard, models, torch.device("cpu"))
    if served is None:
        raise DataError(f"{models}: expected a model of {path}, got another shard's")
    assert isinstance(served, Served)
    return shard, (alone_lists(shard, head.method.cutoff, models), served.ranker.top)


def _groups(records: NDArray[np.floating[Any]], bounds: Bounds) -> list[tuple[str, NDArray[np.bool_]]]:
    return [(name, (low <= records) & (records < high)) for name, (low, high) in bounds.items()]


def _count_found(
    shard: Shard, seen: sparse.csr_array, tops: Sequence[TopItems], chosen: NDArray[np.bool_]
) -> list[float]:
    target = select_columns(shard.test, chosen)
    return [target.nnz, *(int(find_hits(top, target, seen)[0].sum()) for top in tops)]


def _sum_quality(
    shard: Shard, seen: sparse.csr_array, tops: Sequence[TopItems], chosen: NDArray[np.bool_]
) -> list[float]:
    rows, counts = np.flatnonzero(chosen), np.diff(shard.test.indptr)
    judged = (find_hits(top, shard.test, seen, rows) for top in tops)
    return [int((counts[rows] > 0).sum()), *(float(METRICS[PRIMARY].per_user(*one).sum()) for one in judged)]


def gain_tables(lines: Sequence[Line]) -> list[str]:
    """Markdown of the lines that have such figures; nothing where none has."""
    known = [line for line in lines if all("gains" in client for client in line["clients"])]
    if not known:
        return []
    tables = (("items", ITEM_RECORDS), ("users", USER_RECORDS))
    by_items, by_users = (
        render_table(["", *bounds], [_gain_row(line, kind, bounds) for line in known]) for kind, bounds in tables
    )
    return ["### By records of the item", BY_ITEMS, by_items, "### By records of the user", BY_USERS, by_users]


BY_ITEMS = f"""Hit rate of test records: the share of them whose item is among the first {K}, by how many training
records the silo itself has of that item; alone / together (together to alone)."""
BY_USERS = f"""{LABELS[PRIMARY].title}, test items, mean over the users with so many training records; alone / together
(together to alone)."""


def _gain_row(line: Line, kind: str, bounds: Bounds) -> list[str]:
    groups = ([client["gains"][kind][name] for client in line["clients"]] for name in bounds)
    return [", ".join([*map(str, place_of(line)), line["label"]]), *map(_gain_text, groups)]


def _gain_text(silos: Sequence[Sequence[float]]) -> str:
    count, alone, together = map(math.fsum, zip(*silos, strict=True))
    if not count:
        return "-"
    return f"{format_number(alone / count)} / {format_number(together / count)} ({format_ratio(together, alone)})"
