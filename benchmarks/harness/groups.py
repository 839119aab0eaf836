"""One client's lists -> quality by groups of users and of items; and clients by the size of their graphs."""

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
STRUCTURE = (("large", 1), ("medium", 4), ("small", 10))  # Table 2: so many clients make its overall column come out
Groups = dict[str, dict[str, list[float]]]


def activity_groups(records: NDArray[np.floating]) -> NDArray[np.int64]:
    """Numbers of records (n,) -> 0 tail, 1 mid, 2 head (n,): sorted ascending (ties by row) and cut 3:2:1."""
    order = np.argsort(records, kind="stable")
    bounds = np.round(np.cumsum(SHARES) / sum(SHARES) * len(records))[:-1]
    group = np.empty(len(records), dtype=np.int64)
    group[order] = np.searchsorted(bounds, np.arange(len(records)), side="right")
    return group


def measure_groups(shard: Shard, top: TopItems) -> Groups:
    """{'users' or 'items': {'tail': [METRICS' values, users], ...}} on test items; groups by training records.

    Users: the mean over the users of the group. Items: only the group's test items count as relevant, the list of the
    user stays the same.
    """
    seen = sparse.csr_array(shard.train + shard.valid)
    by_user, by_item = degrees(shard.train)
    top = cache_lists(shard, top, seen)
    user_group, item_group = activity_groups(by_user), activity_groups(by_item)
    users = [evaluate(top, shard.test, seen, np.flatnonzero(user_group == g)) for g in range(len(ACTIVITY))]
    items = [evaluate(top, select_columns(shard.test, item_group == g), seen) for g in range(len(ACTIVITY))]
    return {"users": _group_values(users), "items": _group_values(items)}


def cache_lists(shard: Shard, top: TopItems, seen: sparse.csr_array) -> TopItems:
    """The same lists, ranked once for all users with a test item."""
    asked = np.flatnonzero(np.diff(shard.test.indptr))
    lists = np.full((shard.test.shape[0], K), -1, dtype=np.int64)
    for rows in np.split(asked, np.arange(CHUNK, len(asked), CHUNK)):
        lists[rows] = top(rows, seen[rows], K)

    def cached_top(rows: Rows, _: sparse.csr_array, k: int) -> Rows:
        return lists[rows, :k]

    return cached_top


def select_columns(target: sparse.csr_array, columns: NDArray[np.bool_]) -> sparse.csr_array:
    """The pairs in these columns (N,); the shape stays."""
    kept = sparse.csr_array(target @ sparse.diags_array(columns.astype(np.float64)))
    kept.eliminate_zeros()
    kept.sort_indices()
    return kept


def _group_values(measures: Sequence[Measures]) -> dict[str, list[float]]:
    return {name: [*measure.values.values(), measure.users] for name, measure in zip(ACTIVITY, measures, strict=True)}


def group_value(client: Mapping[str, Any], kind: str, group: str, metric: str) -> float:
    """One value of what `measure_groups` gave; NaN where the group has no user, or was measured without this metric."""
    *values, users = client.get("groups", {}).get(kind, {}).get(group, (0,))
    return dict(zip(METRICS, values, strict=False)).get(metric, math.nan) if users else math.nan


def group_users(client: Mapping[str, Any], kind: str, group: str) -> int:
    """How many test users the group has."""
    users: int = client.get("groups", {}).get(kind, {}).get(group, (0,))[-1]
    return users


def structure_groups(clients: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Clients by the number of their nodes: 1 large, 4 medium, 10 small; in proportion where there are not 15."""
    # Paper: groups by bounds on nodes (> 40K, 10K to 15K, < 8K) of the full Amazon-Book; here: by rank, because the
    # bounds fit no other data set, and 1, 4 and 10 clients are what the table's overall column follows from.
    size: Callable[[dict[str, Any]], float] = lambda client: -(client["users"] + client["items"])  # noqa: E731
    ordered = sorted(clients, key=size)
    total = sum(count for _, count in STRUCTURE)
    bounds = np.round(np.cumsum([count for _, count in STRUCTURE]) / total * len(ordered)).astype(int)
    starts = (0, *bounds[:-1])
    return {name: ordered[a:b] for (name, _), a, b in zip(STRUCTURE, starts, bounds, strict=True)}
