"""The client's event log, and errors described for it without ids or paths."""

from __future__ import annotations

import traceback
from pathlib import Path

from shared.errors import FederationError
from shared.web.logs import make_logger

LOGGER = make_logger("client_service")


def describe_failure(error: Exception) -> str:
    """Describes an error without paths and without the text of an unforeseen error.

    Such a text may contain an id.
    """
    if isinstance(error, FederationError):
        return str(error)
    if isinstance(error, OSError):
        return f"expected free disk space and a writable directory, got {error.strerror}"
    name = type(error).__name__
    if isinstance(error, MemoryError) or "OutOfMemory" in name:
        return f"expected enough memory for the settings, got {name}"
    return f"the silo's own computation failed with {name}: see the log"


def describe_place(error: Exception) -> str:
    """Returns the files and lines of an error's last calls."""
    calls = traceback.extract_tb(error.__traceback__)[-4:]
    return ", ".join(f"{Path(call.filename).name}:{call.lineno}" for call in calls)
