"""What other users of the machine could read of a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

USUAL = 0o022


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """As most systems come: whatever is made may be read by everybody."""
    before = os.umask(USUAL)
    yield
    os.umask(before)


def readable(folder: Path) -> dict[str, str]:
    """What others may do anything with, and its mode; public keys are for all."""
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*")) if path.suffix != ".pub"}
    return {str(path.relative_to(folder)): oct(mode) for path, mode in found.items() if mode & 0o077}
