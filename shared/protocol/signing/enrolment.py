"""Key pairs of clients, and the folder of public keys that an aggregator has registered."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from shared.errors import ConflictError, NotFoundError, SettingsError, UnavailableError
from shared.files import PRIVATE, PUBLIC, make_private_folder, replace_file, write_new
from shared.protocol.schemas import ClientName
from shared.protocol.signing.keys import (
    PrivateKey,
    PublicKey,
    fingerprint,
    new_key,
    private_pem,
    public_pem,
    read_private,
    read_public,
)

FOLDER = "by-key"  # folder of the index, in the folder of registered keys
STAMP = "stamp"  # file with the time of the folder when it was last read; no fingerprint has this name
LOCK_SECONDS = 30.0  # a registration takes a few milliseconds
LOOK_SECONDS = 0.005

ReadAll = Callable[[], Mapping[str, str]]
"""Function that reads all files: the name of each key by its fingerprint."""


class KeyIndex:
    """Index of registered keys by fingerprint, while its lock is held."""

    def __init__(self, keys: Path) -> None:
        self._keys, self._folder = keys, keys / FOLDER

    def find_name(self, mark: str) -> str | None:
        """Returns the name that the index has for a key's fingerprint."""
        return _read(self._folder / mark)

    def note(self, mark: str, name: str) -> None:
        """Adds a key's name, durably."""
        self._replace(mark, name)
        self._replace(STAMP, str(self._time()))

    def follow(self, read_all: ReadAll) -> None:
        """Reads the folder again, unless it is unchanged since the stamp."""
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
            raise SettingsError(f"{self._folder}: expected a writable path ({error.strerror})") from None

    def _time(self) -> int:
        """Returns when the folder last got or lost a file, in nanoseconds.

        Files in folders beneath do not count.
        """
        return self._keys.stat().st_mtime_ns


@contextmanager
def lock_index(keys: Path, read_all: ReadAll) -> Iterator[KeyIndex]:
    """Locks the index of a folder and brings it up to date.

    Raises UnavailableError if another process holds it for too long, SettingsError if the folder cannot be
    written.
    """
    with lock_folder(keys / FOLDER):
        index = KeyIndex(keys)
        index.follow(read_all)
        yield index


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Locks a folder against other threads and processes; makes it where missing.

    Raises UnavailableError if it is held for too long, SettingsError if it cannot be written.
    """
    try:
        make_private_folder(folder)
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise SettingsError(f"{folder.parent}: expected a writable path ({error.strerror})") from None
    with lock:
        _wait_for(lock)
        yield


def _wait_for(lock: BinaryIO) -> None:
    """Waits for the lock of a file, which ends with its process."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise UnavailableError(
                    f"expected the registered keys within {LOCK_SECONDS:g} s,"
                    " got another registration in progress: try again"
                ) from None
        time.sleep(LOOK_SECONDS)


def _read(file: Path) -> str | None:
    """Reads a file of the index; None if it is missing or damaged."""
    try:
        return file.read_text(encoding="ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


NAME: TypeAdapter[str] = TypeAdapter(ClientName)


@dataclass(frozen=True)
class KeyFiles:
    """Paths of a client's private and public key."""

    name: str
    private: Path
    public: Path

    @staticmethod
    def of(name: str, folder: Path) -> KeyFiles:
        return KeyFiles(name, folder / f"{name}.key", public_file(name, folder))


def public_file(name: str, folder: Path) -> Path:
    """Returns the path of a client's public key in the folder."""
    return folder / f"{name}.pub"


def make_key_pair(name: str, folder: Path) -> KeyFiles:
    """Makes a new key pair; raises ConflictError if a private key exists.

    To replace it would lock the client out.
    """
    pair, key = KeyFiles.of(require_name(name), folder), new_key()
    if not write_new(pair.private, private_pem(key), PRIVATE):
        raise ConflictError(f"{pair.private}: expected no file there, got one; nothing was changed")
    pair.public.unlink(missing_ok=True)  # of a private key that is gone
    write_new(pair.public, public_pem(key.public_key()), PUBLIC)
    return pair


def ensure_key_pair(name: str, folder: Path) -> KeyFiles:
    """Returns the existing key pair, or makes one.

    A missing public half is made again from the private one.
    """
    pair = KeyFiles.of(require_name(name), folder)
    if not pair.private.exists():
        return make_key_pair(name, folder)
    write_new(pair.public, public_pem(read_private(pair.private).public_key()), PUBLIC)
    return pair


def read_own_key(client: str, state_directory: Path, given: Path | None = None) -> PrivateKey:
    """Reads a client's private key from `given`, or from its state directory.

    Raises SettingsError if there is none, if others may read it, or if it is no such key.
    """
    path = given or KeyFiles.of(client, state_directory).private
    if not path.exists():
        raise SettingsError(f"{path}: expected the private key of {client!r}; `lpsfed keys new {client}` makes one")
    return read_private(path)


def register_key_file(public: Path, folder: Path) -> str:
    """Registers the key of a file `<name>.pub`; returns the name.

    The same key again changes nothing. Raises ConflictError if the name has another key, or the key another name.
    """
    name = require_name(public.name.removesuffix(".pub"))
    register_key(name, read_public(public), folder)
    return name


def register_key(name: str, key: PublicKey, folder: Path) -> None:
    """Registers a key under a name, as `register_key_file` does."""
    file = public_file(require_name(name), folder)
    if file.exists():
        return _require_same(name, file, key)
    with lock_index(folder, partial(_names_by_mark, folder)) as index:
        if (holder := _find_holder(index, key, folder)) not in (None, name):
            raise ConflictError(f"expected a key of its own for {name!r}, {holder!r} has this one")
        if not write_new(file, public_pem(key), PUBLIC):  # somebody has been faster
            return _require_same(name, file, key)
        index.note(fingerprint(key), name)


def _require_same(name: str, file: Path, key: PublicKey) -> None:
    held = _read_key(file)
    if held is None or fingerprint(held) != fingerprint(key):
        raise ConflictError(f"expected a name without a key, {name!r} has another one: remove it first")


def _find_holder(index: KeyIndex, key: PublicKey, folder: Path) -> str | None:
    """Returns the name that has the key; None if its file is gone or changed."""
    name = index.find_name(mark := fingerprint(key))
    held = _read_key(public_file(name, folder)) if name is not None and _is_name(name) else None
    return name if held is not None and fingerprint(held) == mark else None


def _names_by_mark(folder: Path) -> dict[str, str]:
    return {fingerprint(key): name for name, key in registered_keys(folder).items() if key is not None}


def registered_key(name: str, folder: Path) -> PublicKey | None:
    """Reads the registered key of a name; None if it has none."""
    return _read_key(public_file(require_name(name), folder))


def registered_keys(folder: Path) -> dict[str, PublicKey | None]:
    """Returns the registered keys by name, sorted; None for a file without a key."""
    files = sorted(folder.glob("*.pub"))
    return {file.stem: _read_key(file) for file in files if _is_name(file.stem)}


def registered_names(folder: Path) -> frozenset[str]:
    """Returns the names that have a file in the folder, without reading the files."""
    return frozenset(file.stem for file in folder.glob("*.pub") if _is_name(file.stem))


def registered_files(folder: Path) -> list[Path]:
    """Lists the files of registered keys by name; raises NotFoundError for none."""
    files = [public_file(name, folder) for name in registered_keys(folder)]
    if not files:
        raise NotFoundError(f"{folder}: expected public keys, <name>.pub each, got none")
    return files


def remove_key(name: str, folder: Path) -> None:
    """Removes a registered key; raises NotFoundError for an unknown name."""
    try:
        public_file(require_name(name), folder).unlink()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"expected a registered name, got {name!r}") from None


def enrol_client(name: str, own: Path, registry: Path) -> KeyFiles:
    """Makes a client's key pair and registers it; existing ones stay."""
    pair = ensure_key_pair(name, own)
    register_key_file(pair.public, registry)
    return pair


def require_name(name: str) -> str:
    """Returns a client's name; raises SettingsError for another text.

    The name may become a file's.
    """
    if not _is_name(name):
        raise SettingsError(f"expected a client's name (a-z, 0-9, _ and -, at most 63 of them), got {name!r}")
    return name


def _is_name(name: str) -> bool:
    try:
        NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def _read_key(file: Path) -> PublicKey | None:
    try:
        return read_public(file)
    except SettingsError:
        return None
