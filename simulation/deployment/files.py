"""What both kinds of deployment need: a number of silos that is in range, and files replaced by new texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from shared.errors import SettingsError

BasisKind = Literal["off", "exact", "iterated"]


def require_silos(silos: int, most: int, reason: str) -> int:
    """The number itself. SettingsError, with the reason of the limit, outside of 1 to `most`."""
    if not 1 <= silos <= most:
        raise SettingsError(f"--silos: expected 1 to {most}, {reason}, got {silos}")
    return silos


def write_files(texts: Mapping[Path, str]) -> tuple[Path, ...]:
    """Replace each file by its text. SettingsError where that is not possible."""
    for path, text in texts.items():
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"{path}: expected a place for a file, got none ({error.strerror})") from None
    return tuple(texts)
