"""Mapped arrays take no more of the process's memory than was read since their pages were released."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from client_service.compiled.arrays import map_array, open_array, release_pages
from tests.support.mapped import mapped_bytes

LARGE = 1 << 22  # bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/self/smaps")
def test_released_pages_leave_the_memory_and_the_array_reads_the_same(tmp_path: Path) -> None:
    values = np.arange(LARGE // 8)
    np.save(tmp_path / "numbers.npy", values)
    found = open_array(tmp_path, "numbers")
    assert found.sum() == values.sum()
    assert mapped_bytes(tmp_path) >= LARGE
    release_pages()
    assert mapped_bytes(tmp_path) == 0
    np.testing.assert_array_equal(found, values)


def test_what_is_written_to_a_mapped_array_stays_when_its_pages_are_released(tmp_path: Path) -> None:
    np.save(tmp_path / "numbers.npy", np.zeros(LARGE // 8))
    writing, reading = map_array(tmp_path / "numbers.npy", "r+"), map_array(tmp_path / "numbers.npy", "r")
    writing[7] = 1.0
    release_pages()
    assert reading[7] == writing[7] == 1.0


def test_an_array_that_nobody_holds_is_not_kept_open(tmp_path: Path) -> None:
    np.save(tmp_path / "numbers.npy", np.zeros(LARGE // 8))
    found = open_array(tmp_path, "numbers")
    assert found.base is not None
    closed = found.base.base
    del found
    assert sys.getrefcount(closed) == 2  # this name, and the call
    del closed
    release_pages()
