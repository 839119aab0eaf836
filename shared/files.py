"""Writes files whole or not at all, keeps secrets private, and locks a state directory."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from shared.errors import SettingsError

PRIVATE, PUBLIC, PRIVATE_FOLDER = 0o600, 0o644, 0o700
OTHERS = 0o077


@contextmanager
def write_privately() -> Iterator[None]:
    """Files and folders that this process and its children make meanwhile are for their user alone.

    What others have to read is PUBLIC, said by `write_new` or `replace_file`.
    """
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def make_private_folder(folder: Path) -> None:
    """A folder for its user alone; one that is there stays as it is."""
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


def close_to_others(folder: Path) -> Path | None:
    """Take from everybody but the owner what they may do with a folder and all that lies in it, but public keys.

    The first file that others can read all the same, because it is not this user's; None where there is none.
    """
    left: Path | None = None
    for place, _, names in os.walk(folder):
        for path in (Path(place), *(Path(place, name) for name in names if not name.endswith(".pub"))):
            if not _is_closed(path):
                left = left or path
    return left if folder.is_dir() and folder.stat().st_mode & stat.S_IXOTH else None


def _is_closed(path: Path) -> bool:
    """Closed now; True also of a folder of another user, whose names alone can be read."""
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) or not found.st_mode & OTHERS:
            return True
        path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
    except FileNotFoundError:  # gone meanwhile
        return True
    except OSError:
        return stat.S_ISDIR(found.st_mode) or not found.st_mode & stat.S_IROTH
    return True


def create_secret(path: Path) -> bool:
    """A new secret, 64 hex characters, in a file that only its user may read; False where there is a file already."""
    return write_new(path, secrets.token_hex(32).encode("ascii"), PRIVATE)


def write_new(path: Path, content: bytes, mode: int) -> bool:
    """Durable when this returns; False, and nothing done, where there is a file already."""
    if path.exists():
        return False
    try:
        make_private_folder(path.parent)
        return _take_place(_write_partial(path, content, mode), path)
    except OSError as error:
        raise SettingsError(f"{path}: expected a place that can be written ({error.strerror})") from None


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Put `content` at `path` in one step, durable when this returns. A crash leaves what was there, or all of it."""
    partial = _write_partial(path, content, mode)
    os.replace(partial, path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """A file's bytes, or the names in a folder, are durable when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_partial(path: Path, content: bytes, mode: int) -> Path:
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # one that a crash left may have other permissions
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask takes away
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return partial


def _take_place(partial: Path, path: Path) -> bool:
    """A link, unlike a renaming, replaces nothing, not even a file that somebody made meanwhile."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def lock_directory(directory: Path) -> TextIO:
    """The lock, to be closed at the end. SettingsError where another process has it, or nothing can be written."""
    try:
        make_private_folder(directory)
        close_to_others(directory)  # an earlier version may have left it open
        owner = (directory / "lock").open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"state_directory: expected a directory that can be written ({error})") from None
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner.close()
        raise SettingsError(f"state_directory: another process is using {directory}") from None
    return owner
