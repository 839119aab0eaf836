"""What the fixtures of several packages give."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.federation import Federation
from tests.support.questions import Question

Silos = Callable[..., tuple[Path, ...]]
Opened = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
Federate = Callable[..., AbstractAsyncContextManager[Federation]]
Until = Callable[[Question], Awaitable[None]]


@dataclass
class Held:
    """Training that stops where the test wants it to: at a client's round, until it is let go."""

    client: str
    number: int
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


Hold = Callable[[str, int], Held]
