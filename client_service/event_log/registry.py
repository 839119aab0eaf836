"""Registry of event logs by task.

A task that is missing here takes no events. No import loads torch, polars, scipy or pandas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from client_service.event_log.log_store import LogStore
from client_service.event_log.node_log import open_node_log, open_node_store
from client_service.event_log.service import LogSettings, SiloLog, open_log, open_store


@dataclass(frozen=True)
class EventLogKind:
    """Event log of one task.

    open_store: opens the file for writing. open_log: opens the file, and lets the overlay follow it: (settings,
    overlay) of the task's own classes.
    """

    open_store: Callable[[LogSettings], LogStore]
    open_log: Callable[[LogSettings, Any], SiloLog[Any, Any]]


EVENT_LOGS = {
    "items": EventLogKind(open_store, open_log),
    "nodes": EventLogKind(open_node_store, open_node_log),
}
