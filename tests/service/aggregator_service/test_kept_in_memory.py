"""Nothing of a single upload or call stays in memory: no interned name, no page of a database beyond a fixed cache."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aggregator_service.storage.disk import Blobs, Disk
from aggregator_service.storage.nonces import Nonces

if TYPE_CHECKING:
    from conftest import Running

SCALARS = {"margin": 0.1, "rho": 0.2}
ROUNDS = 3
OF_A_BLOB = re.compile("[0-9a-f]{32}")
FEW = 50  # memory blocks of the interpreter: its own caches come and go
CACHE_KIB = 256


@pytest.fixture
def interned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every string that is interned from now on by Python code, such as pathlib's."""
    found: list[str] = []
    intern: Callable[[str], str] = sys.intern

    def note(text: str) -> str:
        found.append(text)
        return intern(text)

    monkeypatch.setattr(sys, "intern", note)
    return found


def cycles(blobs: Blobs, count: int) -> None:
    """Uploads as a round sees them: stored, read again, and removed."""
    for number in range(count):
        blob = blobs.save([f"{number}".encode()])
        assert blobs.damage(blob.name, blob.digest) is None
        blobs.remove([blob.name])


def test_no_name_of_a_blob_is_interned(tmp_path: Path, interned: list[str]) -> None:
    cycles(Blobs(tmp_path / "blobs", Disk()), 20)
    assert [text for text in interned if OF_A_BLOB.search(text)] == []


@pytest.mark.anyio
async def test_nor_in_whole_rounds(running: Running, interned: list[str]) -> None:
    """Taken in, aggregated, given back and deleted."""
    async with running(retention_rounds=1) as federation:
        clients = await federation.joined("north", "south")
        assert (await federation.start_run(rounds=ROUNDS, clients=2)).status_code == 201
        for number in range(1, ROUNDS + 1):
            for client in clients:
                assert (await client.put(number, client.update(float(number), **SCALARS))).status_code == 201
            for client in clients:
                assert (await client.personalised(number)).status_code == 200
    assert [text for text in interned if OF_A_BLOB.search(text)] == []


def test_a_store_through_which_thousands_have_gone_holds_no_more_than_before(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", Disk())
    cycles(blobs, 20)
    gc.collect()
    before = sys.getallocatedblocks()
    cycles(blobs, 1000)
    gc.collect()
    assert sys.getallocatedblocks() - before < FEW


def test_the_cache_of_the_nonces_is_bounded(tmp_path: Path) -> None:
    """By itself it grows to 2 MiB with the file."""
    with closing(Nonces(tmp_path, Disk(), seconds=120.0)) as nonces:
        (held,) = nonces._connection.execute("PRAGMA cache_size").fetchone()
    assert held == -CACHE_KIB
