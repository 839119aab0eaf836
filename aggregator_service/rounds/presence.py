"""Signed calls -> when each client was heard of last, in memory alone: what tells a client that trains from one that is
gone."""

from __future__ import annotations

from aggregator_service.process import Clock


class Presence:
    """Of clients whose signature holds, so that it grows no further than the registry does; a restart forgets it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}

    def note_client(self, name: str) -> None:
        """This client has just called, or has just been answered."""
        self._seen[name] = self._clock()

    def seen_times(self) -> dict[str, float]:
        """Seconds since the epoch by client, of all that have called since the service started."""
        return dict(self._seen)
