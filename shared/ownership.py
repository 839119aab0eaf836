"""A state directory -> a lock that ends with the process: two services in it would ruin each other's files."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from shared.errors import SettingsError
from shared.new_files import close_to_others, make_private_folder


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
