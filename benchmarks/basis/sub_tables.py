"""Sub-tables of the results: gains by group, the cost of noise, and methods without sums.

Gains are by the number of a silo's records of an item, and of a user. They are counted on test items, by the lists
that the silo serves after the run and by those of its own fused start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.common import render_table
from benchmarks.harness.groups import cache_lists, select_columns
from benchmarks.harness.tables import format_number
from client_service.data.interaction_files import load_shard, with_places
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY, K
from client_service.evaluation.ranking import TopItems, find_hits
from client_service.federation.best_model import load_model
from client_service.joining_value.comparison import rank_local_lists
from client_service.model_store.model_files import ServedItems, load_head
from client_service.tasks.items import ITEMS
from shared.errors import DataError
from shared.method.graph import degrees
from simulation.partitioning.catalogue import CATALOGUE

Figures = dict[str, Any]
Line = dict[str, Any]


def federation_key(line: Line) -> tuple[str, str, int]:
    """Returns data set, cut and number of silos."""
    return line["data"], line["cut"], len(line["clients"])


def is_other_method(line: Line) -> bool:
    """Tells whether a line is another method's run, measured by the harness."""
    return "extra" not in line


def epsilon_of(line: Line) -> float | None:
    """Returns epsilon of the common basis; None if the sums have no noise."""
    found: float | None = line["settings"].get("basis.epsilon")
    return found


def ratio(line: Line) -> float:
    """Computes the ratio of together to alone."""
    found: float = line["extra"]["together"] / line["extra"]["alone"]
    return found


def format_ratio(own: float | None, to: float | None) -> str:
    """Formats a ratio; a dash where a value is unknown or the divisor is zero."""
    return "-" if own is None or not to else f"{own / to:.3f}"


def format_verdict(found: float | None, target: float | None) -> str:
    """Formats the target and whether it is met; a dash without a target."""
    if target is None or found is None:
        return "-"
    return f"{target:.2f}: {'met' if found >= target else 'NOT met'}"


def mean_bytes(line: Line, key: str) -> float:
    """Computes the mean bytes sent per silo."""
    return math.fsum(client[key] for client in line["clients"]) / len(line["clients"])


def mean_of_users(clients: Sequence[Figures], value: Callable[[Figures], float]) -> float | None:
    """Computes a mean over all test users of these silos; None without test users."""
    tested = [client for client in clients if client["test_users"]]
    users: int = sum(client["test_users"] for client in tested)
    return math.fsum(client["test_users"] * value(client) for client in tested) / users if users else None


EASE_TARGETS = {("ml-1m", "random", 64, 8.0): 1.15}
"""The least ratio of together to EASE in each silo that a row with this epsilon should have."""
EXACT, EXACT_UNTRAINED = "exact", "exact, no training"
EPSILON = """The sums hide one user of one silo up to epsilon, at delta 1e-5
([privacy](privacy.md#noise-the-privacy-of-one-user)). *EASE*: that of each silo on its own data. *Without noise*: the
row of the same settings without epsilon."""
EPSILON_COLUMNS = (
    *("data, cut, silos", "epsilon", "EASE", "alone", "together", "together / EASE", "target", "together / alone"),
    *("without noise", "bytes up a silo"),
)
METHODS = f"""{LABELS[PRIMARY].title}, user mean, test items, the same users in the same silos. Alone, together and
centralised are those of the row *{EXACT}*. The methods have the settings and rounds of table 1 and share in the open;
*local* shares nothing, *LPSFed, strict* two MLPs and two numbers, the others tables of items, which start at noise.
Bytes: of a method its updates, of *together* all bodies of both runs; mean over the silos."""
METHOD_COLUMNS = ("data, cut, silos", "", "rounds", LABELS[PRIMARY].title, "to alone", "bytes up a silo")


def epsilon_table(lines: Sequence[Line]) -> list[str]:
    """Renders the rows with noise, by federation and falling epsilon; empty without any."""
    noised = sorted(
        (line for line in lines if epsilon_of(line)), key=lambda one: (*federation_key(one), -_epsilon(one))
    )
    if not noised:
        return []
    free = {federation_key(line): line for line in lines if line["label"] == EXACT_UNTRAINED}
    rows = [_epsilon_row(line, free.get(federation_key(line))) for line in noised]
    return ["### Accuracy against epsilon", EPSILON, render_table(EPSILON_COLUMNS, rows)]


def _epsilon(line: Line) -> float:
    return epsilon_of(line) or 0.0


def _epsilon_row(line: Line, free: Line | None) -> list[str]:
    found = line["extra"]
    ease, alone, together = found["floors"]["EASE"], found["alone"], found["together"]
    over = None if not ease else together / ease
    return [
        ", ".join(map(str, federation_key(line))),
        f"{_epsilon(line):g}",
        *map(format_number, (ease, alone, together)),
        format_ratio(together, ease),
        format_verdict(over, EASE_TARGETS.get((*federation_key(line), _epsilon(line)))),
        format_ratio(together, alone),
        "-" if free is None else format_number(free["extra"]["together"]),
        f"{mean_bytes(line, 'bytes_up'):,.0f}",
    ]


def method_table(lines: Sequence[Line]) -> list[str]:
    """Renders the other methods and their references; empty without any."""
    methods = [line for line in lines if is_other_method(line)]
    bases = {federation_key(line): line for line in lines if line["label"] == EXACT}
    places = sorted({federation_key(line) for line in methods})
    rows = [
        row
        for place in places
        for row in _method_rows([line for line in methods if federation_key(line) == place], bases.get(place))
    ]
    return ["### Beside methods that share items", METHODS, render_table(METHOD_COLUMNS, rows)] if rows else []


def _method_rows(methods: Sequence[Line], basis: Line | None) -> Iterator[list[str]]:
    """Yields the reference rows, then the methods as configured."""
    place = ", ".join(map(str, federation_key(methods[0])))
    alone = None if basis is None else basis["extra"]["alone"]
    if basis is not None:
        sent = {"alone": "0", "together": f"{mean_bytes(basis, 'bytes_up'):,.0f}", "centralised": "all data"}
        rounds = {"together": f"basis run + {basis['rounds']}"}
        for name, crossed in sent.items():
            value = basis["extra"][name]
            yield [place, name, rounds.get(name, "-"), format_number(value), format_ratio(value, alone), crossed]
    for line in methods:
        value = mean_of_users(line["clients"], lambda client: client[PRIMARY])
        sent_bytes = f"{mean_bytes(line, 'bytes_up'):,.0f}"
        yield [place, line["label"], str(line["rounds"]), format_number(value), format_ratio(value, alone), sent_bytes]


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
    """Measures one silo's gains by group, for the run in `folder`.

    items: test records of items by number of training records, and how many of them are in the top 20. users: test
    users by number of training records, and the sum of their primary measure. Raises DataError without the kept
    model.
    """
    shard, tops = _load_lists(folder, path)
    seen = sparse.csr_array(shard.train + shard.valid)
    cached = [cache_lists(shard, top, seen) for top in tops]
    of_users, of_items = degrees(shard.train)
    return {
        "items": {name: _count_found(shard, seen, cached, chosen) for name, chosen in _groups(of_items, ITEM_RECORDS)},
        "users": {name: _sum_quality(shard, seen, cached, chosen) for name, chosen in _groups(of_users, USER_RECORDS)},
    }


def _load_lists(folder: Path, path: Path) -> tuple[Shard, tuple[TopItems, TopItems]]:
    """Returns the shard, the lists of its own start, and the served lists."""
    models = folder / path.name / "model"
    head = load_head(models)
    if head is None:
        raise DataError(f"{models}: expected the kept model of a finished run, got none")
    shard = with_places(load_shard(path), folder / CATALOGUE, head.method.catalogue, partly=True)
    served = load_model(ITEMS, shard, models, torch.device("cpu"))
    if served is None:
        raise DataError(f"{models}: expected a model of {path}, got another shard's")
    assert isinstance(served, ServedItems)
    return shard, (rank_local_lists(shard, head.method.cutoff, models), served.ranker.top)


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
    """Renders the lines that have gains; empty without any."""
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
BY_USERS = f"""{LABELS[PRIMARY].title}, test items, mean over the users by number of training records; alone / together
(together to alone)."""


def _gain_row(line: Line, kind: str, bounds: Bounds) -> list[str]:
    groups = ([client["gains"][kind][name] for client in line["clients"]] for name in bounds)
    return [", ".join([*map(str, federation_key(line)), line["label"]]), *map(_gain_text, groups)]


def _gain_text(silos: Sequence[Sequence[float]]) -> str:
    count, alone, together = map(math.fsum, zip(*silos, strict=True))
    if not count:
        return "-"
    return f"{format_number(alone / count)} / {format_number(together / count)} ({format_ratio(together, alone)})"
