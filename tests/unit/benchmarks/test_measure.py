"""One cell in this process: groups of users for a strategy with a table of items, and whose cache it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness.measure import Work, measure_federation

Silos = Callable[..., tuple[Path, ...]]


@pytest.fixture
def work(small: Callable[..., Work]) -> Work:
    return small(strategy="fedmf", groups=True)


def test_a_strategy_with_a_table_of_items_is_looked_at_by_groups(work: Work) -> None:
    found = measure_federation(work)
    assert len(found["clients"]) == 2
    for client in found["clients"]:
        users = client["groups"]["users"]
        assert set(users) == {"tail", "mid", "head"}
        asked = sum(count for _, _, count in users.values())
        mean = sum(ndcg * count for _, ndcg, count in users.values()) / asked
        assert asked == client["test_users"] and mean == pytest.approx(client["ndcg"])  # the very model that was tested


def test_a_cell_with_a_cache_of_its_own_takes_nothing_over(work: Work) -> None:
    shared = work.shards[0].parent / "kept"
    assert work.cache_folder == shared
    own = Work(**{**vars(work), "own_cache": True})
    assert own.cache_folder == own.state / "kept"
    measure_federation(own)
    assert any(own.cache_folder.rglob("*.*")) and not shared.exists()
