"""A file -> the client's 256-bit secret: made at the first start, or given, and never shown."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from shared.errors import SettingsError

LEAST_CHARACTERS = 32


def own_secret(state_directory: Path, given: Path | None = None) -> str:
    """The bearer secret of this client: of the file `given`, or of its own, which is made where there is none.

    SettingsError where the file cannot be read, or holds what could be guessed or not be sent.
    """
    path = given or state_directory / "secret"
    if given is None:
        create_secret(path)
    return _read(path)


def create_secret(path: Path) -> bool:
    """A new secret, 64 hex characters, in a file that only its user may read; False where there is a file already."""
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{path}: expected a place that can be written ({error.strerror})") from None
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # one that a crash left may have other permissions
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    return _take_place(partial, path)


def _take_place(partial: Path, path: Path) -> bool:
    """A link, unlike a renaming, replaces nothing, not even a file that somebody made meanwhile."""
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def _read(path: Path) -> str:
    try:
        value = path.read_bytes().decode("ascii", "replace").strip()
    except OSError as error:
        raise SettingsError(f"{path}: expected a file with the secret ({error.strerror})") from None
    if not re.fullmatch("[!-~]*", value):
        raise SettingsError(f"{path}: expected a secret of printable ASCII characters without spaces, got others")
    if len(value) < LEAST_CHARACTERS:
        raise SettingsError(f"{path}: expected a secret of at least {LEAST_CHARACTERS} characters, got {len(value)}")
    return value
