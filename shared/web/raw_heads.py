"""A head as its bytes came: how many they were, how its names were spelled, and from which address.

Headers once read do not show the spaces before a value, nor capital letters: these could carry anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import Scope

STATE = "raw_head"  # in a request's state


@dataclass(frozen=True)
class RawHead:
    """bytes: of the first line, of all headers and of the empty line; names: as spelled; peer: who has connected."""

    bytes: int
    names: tuple[str, ...]
    peer: str | None


def raw_head(scope: Scope) -> RawHead | None:
    """None where a request did not come over a wire."""
    found: RawHead | None = scope.get("state", {}).get(STATE)
    return found


class MeasuredConnection(h11.Connection):
    """Tells `note` of each request's head: its bytes and its names, before anybody acts on it."""

    def __init__(self, most: int | None, note: Callable[[int, tuple[str, ...]], None]) -> None:
        limit: dict[str, Any] = {} if most is None else {"max_incomplete_event_size": most}
        super().__init__(h11.SERVER, **limit)
        self._note = note

    def next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        before = len(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = tuple(name.decode("latin-1") for name, _ in event.headers.raw_items())
            self._note(before - len(self.trailing_data[0]), names)
        return event
