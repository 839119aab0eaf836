"""Changes -> everybody who waits for one wakes up; no polling."""

from __future__ import annotations

import anyio


class Changes:
    """A count of changes and a way to wait for the next. Who read the count before looking cannot miss one."""

    def __init__(self) -> None:
        self.count = 0
        self.closing = False
        self._event: anyio.Event | None = None

    def announce(self) -> None:
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    def close(self) -> None:
        """Wake everybody, now and from now on: nobody may hold up the shutdown."""
        self.closing = True
        self.announce()

    async def after(self, count: int) -> None:
        """Until the count is above `count`."""
        if self.count == count and not self.closing:
            self._event = self._event or anyio.Event()
            await self._event.wait()
