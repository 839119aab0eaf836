"""Small silos for the tests of several packages, and the one event loop that they use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_service.shard import write_shard
from shared.settings import AnchorSettings, MethodSettings

Silos = Callable[..., tuple[Path, ...]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def small() -> MethodSettings:
    """A model that trains in a hundredth of a second; every change of a round shows."""
    anchor = AnchorSettings(users=40, items=30, edges=200)
    return MethodSettings(width=4, layers=1, cutoff=8, batch_size=64, negatives=8, anchor=anchor)


@pytest.fixture
def silos(tmp_path: Path) -> Silos:
    """Folders of so many shards, client-1 and on. Two tastes: of the first items, and of the last ones."""

    def write(count: int, *, seed: int = 0, users: int = 16, items: int = 12) -> tuple[Path, ...]:
        folders = [tmp_path / "shards" / f"client-{number}" for number in range(1, count + 1)]
        for number, folder in enumerate(folders):
            write_shard(folder, folder.name, _pairs(seed + number, users, items), _titled(items))
        return tuple(folders)

    return write


def _pairs(seed: int, users: int, items: int) -> pl.DataFrame:
    """Each user has six items of its half: four to train on, one to validate and one to test."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(users):
        half = np.arange(items // 2) + items // 2 * (user % 2)
        chosen = rng.permutation(half)[:6]
        for item, split in zip(chosen, ("train",) * 4 + ("valid", "test"), strict=True):
            rows.append((f"user-{user:02d}", f"item-{item:02d}", split))
    return pl.DataFrame(rows, schema=["user", "item", "split"], orient="row")


def _titled(items: int) -> pl.DataFrame:
    ids = [f"item-{item:02d}" for item in range(items)]
    return pl.DataFrame({"item": ids, "title": [f"Title of {item}" for item in ids]})
