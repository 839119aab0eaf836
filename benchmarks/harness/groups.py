"""Quality of one client by groups of users and items; clients by graph size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.evaluation.metrics import METRICS, K, Measures
from client_service.evaluation.ranking import CHUNK, TopItems, evaluate
from client_service.models.ranker import Rows
from shared.method.graph import degrees

ACTIVITY = ("tail", "mid", "head")
SHARES = (3, 2, 1)  # Section 5.2 (RQ3): groups in the proportion 3:2:1, the fewest records first
STRUCTURE = (("large", 1), ("medium", 4), ("small", 10))  # Table 2: these numbers of clients give its overall column
Groups = dict[str, dict[str, list[float]]]


def activity_groups(records: NDArray[np.floating]) -> NDArray[np.int64]:
    """Assigns rows to tail 0, mid 1 or head 2 by their records, 3:2:1.

    Sorted ascending, ties by row. Shapes (n,).
    """
    order = np.argsort(records, kind="stable")
    bounds = np.round(np.cumsum(SHARES) / sum(SHARES) * len(records))[:-1]
    group = np.empty(len(records), dtype=np.int64)
    group[order] = np.searchsorted(bounds, np.arange(len(records)), side="right")
    return group


def measure_groups(shard: Shard, top: TopItems) -> Groups:
    """Measures quality on test items by groups of users and of items.

    Returns {'users' or 'items': {'tail': [METRICS' values, users], ...}}; groups by training records. Users: the mean
    over the users of the group. Items: only the group's test items count as relevant; the user's list stays the same.
    """
    seen = sparse.csr_array(shard.train + shard.valid)
    by_user, by_item = degrees(shard.train)
    top = cache_lists(shard, top, seen)
    user_group, item_group = activity_groups(by_user), activity_groups(by_item)
    users = [evaluate(top, shard.test, seen, np.flatnonzero(user_group == g)) for g in range(len(ACTIVITY))]
    items = [evaluate(top, select_columns(shard.test, item_group == g), seen) for g in range(len(ACTIVITY))]
    return {"users": _group_values(users), "items": _group_values(items)}


def cache_lists(shard: Shard, top: TopItems, seen: sparse.csr_array) -> TopItems:
    """Ranks the lists of all users with a test item once."""
    asked = np.flatnonzero(np.diff(shard.test.indptr))
    lists = np.full((shard.test.shape[0], K), -1, dtype=np.int64)
    for rows in np.split(asked, np.arange(CHUNK, len(asked), CHUNK)):
        lists[rows] = top(rows, seen[rows], K)

    def cached_top(rows: Rows, _: sparse.csr_array, k: int) -> Rows:
        return lists[rows, :k]

    return cached_top


def select_columns(target: sparse.csr_array, columns: NDArray[np.bool_]) -> sparse.csr_array:
    """Keeps the pairs in these columns (N,); the shape stays."""
    kept = sparse.csr_array(target @ sparse.diags_array(columns.astype(np.float64)))
    kept.eliminate_zeros()
    kept.sort_indices()
    return kept


def _group_values(measures: Sequence[Measures]) -> dict[str, list[float]]:
    return {name: [*measure.values.values(), measure.users] for name, measure in zip(ACTIVITY, measures, strict=True)}


def group_value(client: Mapping[str, Any], kind: str, group: str, metric: str) -> float:
    """Returns one value of a group; NaN without users or without this metric."""
    *values, users = client.get("groups", {}).get(kind, {}).get(group, (0,))
    return dict(zip(METRICS, values, strict=False)).get(metric, math.nan) if users else math.nan


def group_users(client: Mapping[str, Any], kind: str, group: str) -> int:
    """Returns the number of the group's test users."""
    users: int = client.get("groups", {}).get(kind, {}).get(group, (0,))[-1]
    return users


def structure_groups(clients: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Groups clients by nodes: 1 large, 4 medium, 10 small, or in proportion."""
    # Paper: groups by bounds on nodes (> 40K, 10K to 15K, < 8K) of the full Amazon-Book; here: by rank, because the
    # bounds fit no other data set, and 1, 4 and 10 clients give the table's overall column.
    size: Callable[[dict[str, Any]], float] = lambda client: -(client["users"] + client["items"])  # noqa: E731
    ordered = sorted(clients, key=size)
    total = sum(count for _, count in STRUCTURE)
    bounds = np.round(np.cumsum([count for _, count in STRUCTURE]) / total * len(ordered)).astype(int)
    starts = (0, *bounds[:-1])
    return {name: ordered[a:b] for (name, _), a, b in zip(STRUCTURE, starts, bounds, strict=True)}
