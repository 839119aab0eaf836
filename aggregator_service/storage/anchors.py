"""The anchor of a round as it is handed out."""

from __future__ import annotations

from dataclasses import dataclass

from shared.method.declaration import Counts


@dataclass(frozen=True)
class Anchor:
    """K^R, where the size of G_R came from, and that size; None where an earlier version has drawn it."""

    kernel: tuple[float, ...]
    source: str
    size: Counts | None
