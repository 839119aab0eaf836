"""A head as its bytes came: how many they were, how its names were spelled, and from which address.

Headers once read do not show the spaces before a value, nor capital letters: these could carry anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
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
    """Tells `note` of each request's head: its bytes and its names, before anybody acts on it.

    No head has more than `most` bytes: h11 itself takes a longer one that is there in one piece. `too_long`: one has.
    """

    def __init__(self, most: int, note: Callable[[int, tuple[str, ...]], None]) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=most)
        self._most, self._note, self.too_long = most, note, False

    def next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        before = len(self.trailing_data[0])
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.too_long = error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise
        if isinstance(event, h11.Request):
            self._look(event, before - len(self.trailing_data[0]))
        return event

    def _look(self, request: h11.Request, size: int) -> None:
        if size > self._most:
            self.too_long = True
            raise h11.RemoteProtocolError("the head is too long")
        self._note(size, tuple(name.decode("latin-1") for name, _ in request.headers.raw_items()))
