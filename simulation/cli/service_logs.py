"""What services log while they run within a command -> lines for a person: no JSON, and nothing twice.

A process that is a service sets up its own log, which takes the place of this.
"""

from __future__ import annotations

import json
import logging
from typing import Any

LEFT_OUT = ("event", "level", "timestamp", "request_id", "reason")
MOST_TOLD = 1000  # lines that are remembered


class PlainHandler(logging.StreamHandler[Any]):
    """Writes each line in words, the first time that it comes."""

    def __init__(self, stream: Any = None) -> None:
        super().__init__(stream)
        self.setFormatter(logging.Formatter())  # else the log would add its own words
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (line := self.format(record)) not in self._told:
            if len(self._told) < MOST_TOLD:
                self._told.add(line)
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        said = super().format(record)
        event = _read_event(said)
        return said if event is None else _describe(event)


def tell_plainly() -> None:
    """From now on, in this process."""
    logging.basicConfig(handlers=[PlainHandler()])


def _read_event(line: str) -> dict[str, Any] | None:
    """The fields of a service's line; None for any other."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _describe(event: dict[str, Any]) -> str:
    """`event: reason (field value, field value)`."""
    words = str(event["event"]).replace("_", " ")
    words += f": {event['reason']}" if "reason" in event else ""
    others = ", ".join(f"{name} {value}" for name, value in event.items() if name not in LEFT_OUT)
    return f"{words} ({others})" if others else words
