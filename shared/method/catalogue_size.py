"""A file -> the number of items of the list that all clients share, in a side's settings of the method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shared.method.settings import MethodSettings

MOST_ITEMS = 1 << 24  # as the setting `catalogue` has it


def with_catalogue_size(
    method: MethodSettings, path: Path | None, count: Callable[[str], int], expected: str
) -> MethodSettings:
    """The settings with the size that `count` finds in the file's text; as they are where they say one themselves, or
    there is no file. ValueError, which begins with `expected`, for a file without a size."""
    if path is None or method.catalogue > 0:
        return method
    try:
        size = count(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{expected} ({error})") from None
    if not 1 <= size <= MOST_ITEMS:
        raise ValueError(f"{expected} (1 to {MOST_ITEMS} items, got {size})")
    return method.model_copy(update={"catalogue": size})
