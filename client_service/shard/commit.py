"""Several files of one folder -> replaced together: whoever reads them sees all of the old ones or all of the new.

The new files are written and made durable in a folder beside the old ones, whose renaming is the commit. After it they
take their places one by one; until they have, they are read where they lie. A kill before the commit leaves the old
files, a kill after it the new ones, and the next change tidies up.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from client_service.shard.files import write_private_bytes
from shared.errors import DataError
from shared.new_files import make_private_folder, sync_path

STAGED, COMMITTED, LOCK = ".staged", ".committed", ".lock"


def current_file(folder: Path, name: str) -> Path:
    """Where the file's committed content lies now."""
    committed = folder / COMMITTED / name
    return committed if committed.exists() else folder / name


def commit_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace the files of these names, all or none; durable when this returns."""
    make_private_folder(folder)
    finish_commit(folder)
    drop_staged(folder)
    staged = folder / STAGED
    make_private_folder(staged)
    for name, content in files.items():
        write_private_bytes(staged / name, content)
        sync_path(staged / name)
    sync_path(staged)
    staged.rename(folder / COMMITTED)
    sync_path(folder)
    finish_commit(folder)


def drop_staged(folder: Path) -> None:
    """Remove what a change has left that was cut off before its commit."""
    shutil.rmtree(folder / STAGED, ignore_errors=True)


def finish_commit(folder: Path) -> None:
    """Put committed files in their places; nothing to do where the last change was not interrupted."""
    committed = folder / COMMITTED
    if not committed.is_dir():
        return
    for path in sorted(committed.iterdir()):
        path.replace(folder / path.name)
    sync_path(folder)
    committed.rmdir()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Nobody else changes the folder meanwhile. DataError where somebody does, or where it cannot be written."""
    try:
        lock = (folder / LOCK).open("w", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{folder}: expected a shard that can be written, got {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{folder}: expected a shard that nobody else is changing") from None
        yield
