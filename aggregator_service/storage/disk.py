"""What the disk refuses -> an error that says what was expected and what came, never a path.

It is remembered until the disk takes it again.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from shared.errors import StorageFullError, UnavailableError

FULL = frozenset({"ENOSPC", "EDQUOT", "EFBIG", "SQLITE_FULL"})


class Disk:
    """The disk of one state directory. `refusal`: what it last said no to, None once it has taken that again."""

    def __init__(self) -> None:
        self.refusal: str | None = None

    @contextmanager
    def translate_refusal(self, what: str) -> Iterator[None]:
        """What is refused inside becomes an UnavailableError, StorageFullError where there is no room.

        `what`: what was expected, in words.
        """
        try:
            yield
        except (OSError, SQLAlchemyError, sqlite3.Error) as error:
            name = _name(error)
            refused = (StorageFullError if name in FULL else UnavailableError)(f"expected {what}, got {name}")
            self.refusal = str(refused)
            raise refused from error


def _name(error: Exception) -> str:
    """ENOSPC, SQLITE_FULL: the system's own word. Its longer ones may hold a path."""
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "sqlite_errorname", type(error).__name__)


def sync_directory(directory: Path) -> None:
    """Make durable which files are in it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
