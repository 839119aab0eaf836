"""The silo's secret of a run that sums: kept, private, another one for each run and federation."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_service.sums.storage import SECRET, SECRET_BYTES, run_secret
from shared.errors import DataError


def test_it_is_the_same_again_and_another_one_in_each_run_federation_and_silo(tmp_path: Path) -> None:
    first = run_secret(tmp_path / "a", "run-1", "f")
    assert run_secret(tmp_path / "a", "run-1", "f") == first and len(first) == 32
    others = [("a", "run-2", "f"), ("a", "run-1", "g"), ("b", "run-1", "f")]
    assert len({first, *(run_secret(tmp_path / silo, run, of) for silo, run, of in others)}) == 4
    file = tmp_path / "a" / SECRET
    assert file.stat().st_mode & 0o077 == 0 and len(file.read_bytes()) == SECRET_BYTES


def test_a_file_that_is_no_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / SECRET).write_bytes(b"short")
    with pytest.raises(DataError, match="expected 32 random bytes, got 5: remove the file"):
        run_secret(tmp_path, "run-1", "f")
