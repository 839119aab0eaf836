"""The folder of registered keys -> whose a key is, without a look at every file.

The files are the truth. The index beside them has a small file for each key, named by its fingerprint, that says a
name; it counts only where that name's file has the key. A stamp says which state of the folder the index follows: after
a change by hand, a removal or a kill the folder's time is another one, and all files are read once.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shared.errors import SettingsError, UnavailableError
from shared.new_files import PUBLIC, make_private_folder, replace_file

FOLDER = "by-key"  # in the folder of registered keys
STAMP = "stamp"  # no fingerprint
LOCK_SECONDS = 30.0  # a registration takes a few milliseconds
LOOK_SECONDS = 0.005

ReadAll = Callable[[], Mapping[str, str]]
"""Each key's fingerprint and name, by all files."""


class KeyIndex:
    """The index of one folder, while nobody else holds it."""

    def __init__(self, keys: Path) -> None:
        self._keys, self._folder = keys, keys / FOLDER

    def find_name(self, mark: str) -> str | None:
        """The name that had the key of this fingerprint when it was last looked at."""
        return _read(self._folder / mark)

    def note(self, mark: str, name: str) -> None:
        """Whose the key is; durable when this returns."""
        self._replace(mark, name)
        self._replace(STAMP, str(self._time()))

    def follow(self, read_all: ReadAll) -> None:
        """Take up what the folder holds, unless it is as the stamp says."""
        now = str(self._time())
        if _read(self._folder / STAMP) == now:
            return
        for mark, name in read_all().items():
            if self.find_name(mark) != name:
                self._replace(mark, name)
        self._replace(STAMP, now)

    def _replace(self, file: str, content: str) -> None:
        try:
            replace_file(self._folder / file, content.encode("ascii"), PUBLIC)
        except OSError as error:
            raise SettingsError(f"{self._folder}: expected a place that can be written ({error.strerror})") from None

    def _time(self) -> int:
        """When the folder last got or lost a file, in nanoseconds; files in folders beneath do not count."""
        return self._keys.stat().st_mtime_ns


@contextmanager
def hold_index(keys: Path, read_all: ReadAll) -> Iterator[KeyIndex]:
    """The folder's index as the folder is now. UnavailableError where somebody else holds it for too long,
    SettingsError where the folder cannot be written."""
    with hold_lock(keys / FOLDER):
        index = KeyIndex(keys)
        index.follow(read_all)
        yield index


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Nobody else, of this process or another one, holds the folder meanwhile, which is made where it is missing.

    UnavailableError where somebody else holds it for too long, SettingsError where it cannot be written.
    """
    try:
        make_private_folder(folder)
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise SettingsError(f"{folder.parent}: expected a place that can be written ({error.strerror})") from None
    with lock:
        _wait_for(lock)
        yield


def _wait_for(lock: BinaryIO) -> None:
    """The lock ends with its file: a killed process holds up nobody."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise UnavailableError(
                    f"expected the registered keys within {LOCK_SECONDS:g} s, got another registration under way"
                ) from None
        time.sleep(LOOK_SECONDS)


def _read(file: Path) -> str | None:
    """What a file of the index says; None for one that is not there or is damaged."""
    try:
        return file.read_text(encoding="ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
