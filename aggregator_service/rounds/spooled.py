"""A body as it comes -> spooled, looked at, taken in; or refused, and nothing of it is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aggregator_service.aggregation.computation import Archive
from aggregator_service.rounds.run import Receipt
from aggregator_service.storage.blobs import Blob

T = TypeVar("T")


async def taken_in(
    archive: Archive,
    body: AsyncIterator[bytes],
    inspect: Callable[[str], T],
    take: Callable[[Blob, T], Awaitable[tuple[Receipt, bool]]],
) -> tuple[Receipt, bool]:
    """The receipt that `take` gives for what `inspect` has found in the body's file, and whether it is new.

    The file stays only where it is.
    """
    blob = await archive.blobs.receive(body, limit=archive.settings.longest_update)
    found = await _inspected(archive, blob, inspect)
    try:
        receipt, new = await take(blob, found)
    except Exception:  # not where a shutdown cancels this: its commit may still be on the way
        archive.blobs.remove([blob.name])
        raise
    if not new:
        archive.blobs.remove([blob.name])
    return receipt, new


async def _inspected(archive: Archive, blob: Blob, inspect: Callable[[str], T]) -> T:
    """The file of a body that is refused is gone, and that of one which a shutdown cut off here."""
    try:
        with archive.database.disk.asked("the body to be read again"):
            return await archive.tensors.off_loop(inspect, archive.blobs.path(blob.name))
    except BaseException:
        archive.blobs.remove([blob.name])
        raise
