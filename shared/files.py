"""Files written whole or not at all, private permissions, and locks of state directories."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from shared.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shared.message import Message

PRIVATE, PUBLIC, PRIVATE_FOLDER = 0o600, 0o644, 0o700
OTHERS = 0o077
LOCK = "lock"  # file in a state directory with the process id of its owner
LEFTOVERS = ("*.partial", ".*.tmp")  # partial files of killed writers; .tmp is of earlier versions
SYSTEM_NUMBER = re.compile(r"\(os error (\d+)\)")  # safetensors gives the system's error number only in its message
Stored = TypeVar("Stored", bound="Message")


@contextmanager
def use_private_umask() -> Iterator[None]:
    """Makes new files and folders private to their user inside a `with` block.

    Files for others are PUBLIC, by `write_new` or `replace_file`.
    """
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def make_private_folder(folder: Path) -> None:
    """Makes a folder for its user alone; an existing one stays as it is."""
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


def remove_public_access(folder: Path) -> Path | None:
    """Removes others' permissions from a folder and all in it, but public keys.

    Returns the first file that others can still read, because it is not this user's; None if there is none, or if
    others cannot enter the folder.
    """
    left: Path | None = None
    for place, _, names in os.walk(folder):
        for path in (Path(place), *(Path(place, name) for name in names if not name.endswith(".pub"))):
            if not _close_path(path):
                left = left or path
    return left if folder.is_dir() and folder.stat().st_mode & stat.S_IXOTH else None


def _close_path(path: Path) -> bool:
    """Removes others' permissions; returns whether the path is closed to them now.

    True also of another user's folder, whose names alone can be read.
    """
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
    """Creates a file with 64 random hex characters; False if it exists."""
    return write_new(path, secrets.token_hex(32).encode("ascii"), PRIVATE)


def write_new(path: Path, content: bytes, mode: int) -> bool:
    """Writes a new file, durably; returns False and does nothing where it exists."""
    if path.exists():
        return False
    try:
        make_private_folder(path.parent)
        partial = _partial_path(path)
        try:
            write_file(partial, content, mode)
            sync_path(partial)
            path.hardlink_to(partial)  # unlike a renaming it replaces nothing, not even what somebody made meanwhile
        except FileExistsError:
            return False
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"{path}: expected a writable path ({error.strerror})") from None
    return True


def replace_file(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replaces a file in one step, durably; a crash leaves the old or the new."""
    with open_replacement(path) as partial:
        write_file(partial, content, mode)


@contextmanager
def open_replacement(path: Path) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` at the end, unless an error occurs."""
    partial = _partial_path(path)
    try:
        yield partial
        put_in_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Replaces a safetensors file by these arrays, which lie in C order.

    Raises OSError if the disk refuses.
    """
    with open_replacement(path) as partial:
        write_arrays(partial, arrays, metadata)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Writes arrays, which lie in C order, to a new safetensors file.

    Raises OSError if the disk refuses.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(arrays), path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (found := SYSTEM_NUMBER.search(str(error))) is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number)) from None


def load_message(path: Path, kind: type[Stored]) -> Stored | None:
    """Reads the message of a JSON file; None if it is missing or invalid."""
    from pydantic import ValidationError  # which the list of commands does without

    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def put_in_place(partial: Path, path: Path) -> None:
    """Makes a written file durable, then renames it to `path`."""
    sync_path(partial)
    partial.replace(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Makes a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Writes a new file with this mode, whatever the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)


def _partial_path(path: Path) -> Path:
    """Returns a unique path beside `path`: others may write to `path` meanwhile."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def remove_leftovers(directory: Path) -> None:
    """Removes partial files of killed processes. Call it while no other process writes there."""
    for place, _, names in os.walk(directory):
        for name in names:
            if any(fnmatchcase(name, pattern) for pattern in LEFTOVERS):
                with suppress(PermissionError):  # in another user's folder: no process of this one has left it
                    Path(place, name).unlink(missing_ok=True)


def read_lock_owner(directory: Path) -> int | None:
    """Returns the id of the process that holds a directory's lock, if known."""
    try:
        with (directory / LOCK).open("r", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                owner = lock.read(20)
                return int(owner) if owner.isdecimal() else None
    except OSError:
        return None
    return None


def lock_directory(directory: Path, process: int | None = None, held: int | None = None) -> TextIO:
    """Locks a state directory and removes partial files; close the result to unlock.

    Raises SettingsError if another process holds it, or nothing can be written. process: id to store as the owner;
    None: this one. held: descriptor of a lock that this process took before it replaced its program.
    """
    if held is not None:
        return os.fdopen(held, "a", encoding="utf-8")
    try:
        make_private_folder(directory)
        remove_public_access(directory)  # an earlier version may have left it open
        owner = (directory / LOCK).open("a", encoding="utf-8")  # not "w": the file holds its owner's id
    except OSError as error:
        raise SettingsError(f"state_directory: expected a writable directory ({error})") from None
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner.close()
        other = read_lock_owner(directory)
        user = "another process" if other is None else f"another process ({other})"
        raise SettingsError(
            f"state_directory: expected a free directory, {user} is using {directory}: stop it, or choose another"
        ) from None
    with suppress(OSError):  # a full disk: the lock holds without the id
        os.ftruncate(owner.fileno(), 0)
        os.write(owner.fileno(), str(process or os.getpid()).encode())
    remove_leftovers(directory)
    return owner
