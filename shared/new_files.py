"""Bytes -> a file that is there whole or not at all: a new one, which takes the place of none, or the next version."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from shared.errors import SettingsError

PRIVATE, PUBLIC = 0o600, 0o644


def create_secret(path: Path) -> bool:
    """A new secret, 64 hex characters, in a file that only its user may read; False where there is a file already."""
    return write_new(path, secrets.token_hex(32).encode("ascii"), PRIVATE)


def write_new(path: Path, content: bytes, mode: int) -> bool:
    """Durable when this returns; False, and nothing done, where there is a file already."""
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
