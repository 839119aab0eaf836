"""One cell in this process: groups of users for a strategy with a table of items, and whose cache it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.measure import Work, federation
from shared.settings import method_settings

Silos = Callable[..., tuple[Path, ...]]


@pytest.fixture
def work(silos: Silos, tmp_path: Path) -> Work:
    sizes: dict[str, Any] = {"anchor.users": 40, "anchor.items": 30, "anchor.edges": 200}
    return Work(
        table="table0",
        root=tmp_path,
        shards=silos(2),
        whole=tmp_path / "whole",
        state=tmp_path / "state",
        strategy="fedmf",
        method=method_settings(width=4, layers=1, cutoff=6, negatives=4, **sizes),
        rounds=1,
        seed=0,
        groups=True,
        extra=False,
        device="cpu",
    )


def test_a_strategy_with_a_table_of_items_is_looked_at_by_groups(work: Work) -> None:
    found = federation(work)
    assert len(found["clients"]) == 2
    for client in found["clients"]:
        users = client["groups"]["users"]
        assert set(users) == {"tail", "mid", "head"}
        asked = sum(count for _, _, count in users.values())
        mean = sum(ndcg * count for _, ndcg, count in users.values()) / asked
        assert asked == client["test_users"] and mean == pytest.approx(client["ndcg"])  # the very model that was tested


def test_a_cell_with_a_cache_of_its_own_takes_nothing_over(work: Work) -> None:
    shared = work.shards[0].parent / "kept"
    assert work.kept == shared
    own = Work(**{**vars(work), "own_cache": True})
    assert own.kept == own.state / "kept"
    federation(own)
    assert any(own.kept.rglob("*.*")) and not shared.exists()
