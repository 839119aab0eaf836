"""A new file is there whole or not at all, for whom it is meant, and in place of none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.files import PUBLIC, create_secret, write_new


def test_a_secret_is_created_once_and_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "operator.token"
    assert create_secret(path) and stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_text()
    assert len(bytes.fromhex(content)) == 32
    assert not create_secret(path) and path.read_text() == content
    assert [one.name for one in path.parent.iterdir()] == ["operator.token"]
    assert create_secret(tmp_path / "other") and (tmp_path / "other").read_text() != content


def test_what_a_crash_left_is_replaced_and_no_longer_readable_by_others(tmp_path: Path) -> None:
    (tmp_path / "secret.partial").write_text("ab")
    (tmp_path / "secret.partial").chmod(0o644)
    assert create_secret(tmp_path / "secret")
    [path] = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_text()) == 64


def test_a_file_that_somebody_makes_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("somebody else's")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert not create_secret(path)
    assert path.read_text() == "somebody else's" and [one.name for one in tmp_path.iterdir()] == ["secret"]


def test_a_file_for_everybody_is_readable_by_everybody(tmp_path: Path) -> None:
    assert write_new(tmp_path / "key.pub", b"public", PUBLIC)
    assert stat.S_IMODE((tmp_path / "key.pub").stat().st_mode) & 0o444 == 0o444


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="file/secret: expected a place that can be written"):
        create_secret(tmp_path / "file" / "secret")
