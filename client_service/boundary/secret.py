"""State directory -> the client's 256-bit secret, made at the first start and never shown."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from shared.errors import SettingsError

LEAST_CHARACTERS = 32


def own_secret(state_directory: Path) -> str:
    """The bearer secret of this client, in a file that only its user may read."""
    path = state_directory / "secret"
    if not path.exists():
        _create(path)
    value = path.read_bytes().decode("ascii", "replace").strip()
    if not re.fullmatch("[!-~]*", value):
        raise SettingsError(f"{path}: expected a secret of printable ASCII characters without spaces, got others")
    if len(value) < LEAST_CHARACTERS:
        raise SettingsError(f"{path}: expected a secret of at least {LEAST_CHARACTERS} characters, got {len(value)}")
    return value


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)  # one that a crash left may have other permissions
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
