"""The registry of tasks: items for users, next items of sessions, labels of nodes."""

from __future__ import annotations

from typing import Any

from client_service.tasks.items import ITEMS
from client_service.tasks.nodes import NODES
from client_service.tasks.sessions import SESSIONS
from client_service.tasks.task import Task
from shared.errors import SettingsError

TASKS: dict[str, Task[Any, Any]] = {task.name: task for task in (ITEMS, SESSIONS, NODES)}


def task_named(name: str) -> Task[Any, Any]:
    """Returns the task of a name; raises SettingsError for an unknown one."""
    if name not in TASKS:
        raise SettingsError(f"task: expected one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]
