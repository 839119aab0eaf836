"""A state directory belongs to one process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.files import lock_directory


def test_a_second_owner_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "state"), pytest.raises(SettingsError, match="another process is using"):
        lock_directory(tmp_path / "state")
    lock_directory(tmp_path / "state").close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="expected a directory that can be written"):
        lock_directory(tmp_path / "file")
