"""A file is there whole or not at all, for whom it is meant; a state directory belongs to one process at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.files import (
    PRIVATE,
    PUBLIC,
    create_secret,
    lock_directory,
    open_replacement,
    read_lock_owner,
    replace_file,
    write_new,
)


def write_public(path: Path, content: bytes) -> bool:
    return write_new(path, content, PUBLIC)


def test_a_secret_is_created_once_and_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "operator.token"
    assert create_secret(path) and stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_text()
    assert len(bytes.fromhex(content)) == 32
    assert not create_secret(path) and path.read_text() == content
    assert [one.name for one in path.parent.iterdir()] == ["operator.token"]
    assert create_secret(tmp_path / "other") and (tmp_path / "other").read_text() != content


def test_what_a_crash_left_is_removed_by_the_next_owner_of_the_directory(tmp_path: Path) -> None:
    names = ("secret.partial", ".model.json.0a1b.partial", ".choice.json.0a1b.tmp")  # two of earlier versions
    for name in names:
        (tmp_path / name).write_text("ab")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".training.safetensors.0a1b.partial").write_text("ab")
    (tmp_path / "notes.tmp").write_text("the operator's own")
    with lock_directory(tmp_path):
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["lock", "model", "notes.tmp"]


def test_two_writers_of_one_path_each_put_a_whole_file_there(tmp_path: Path) -> None:
    """The second begins and ends while the first is at work."""
    path = tmp_path / "state"
    with open_replacement(path) as begun:
        begun.write_bytes(b"first")
        replace_file(path, b"second", PRIVATE)
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first" and [one.name for one in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("write", [lambda path, content: replace_file(path, content, PUBLIC), write_public])
def test_writers_at_work_at_the_same_time_never_fail_and_never_mix(
    tmp_path: Path, write: Callable[[Path, bytes], object]
) -> None:
    path, contents = tmp_path / "state", [bytes([65 + number]) * 4096 for number in range(8)]
    with ThreadPoolExecutor(len(contents)) as pool:
        for _ in range(20):
            list(pool.map(partial(write, path), contents))
            assert path.read_bytes() in contents
            path.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(OSError):
        replace_file(tmp_path / "state", b"content", PRIVATE)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


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
    with pytest.raises(SettingsError, match="file/secret: expected a writable path"):
        create_secret(tmp_path / "file" / "secret")


def test_a_second_owner_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with (
        lock_directory(tmp_path / "state"),
        pytest.raises(SettingsError, match=rf"another process \({os.getpid()}\) is using"),
    ):
        lock_directory(tmp_path / "state")
    lock_directory(tmp_path / "state").close()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="expected a writable directory"):
        lock_directory(tmp_path / "file")


def test_a_lock_says_whose_it_is_while_it_is_held_and_not_after(tmp_path: Path) -> None:
    assert read_lock_owner(tmp_path / "state") is None
    with lock_directory(tmp_path / "state"):
        assert read_lock_owner(tmp_path / "state") == os.getpid()
    assert read_lock_owner(tmp_path / "state") is None
    (tmp_path / "state" / "lock").write_text("of an earlier version, which wrote nothing")
    with lock_directory(tmp_path / "state"):
        assert read_lock_owner(tmp_path / "state") == os.getpid()
