"""A client that dies at a moment of its run, and starts again with what is on its disk.

A kill is told to the disk alone: at that very moment the client's state directory is copied, and a new service starts
from the copy. What the old one does from then on reaches nobody.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import pytest

from client_service.settings import ClientSettings
from tests.support.federation import Federation, run_client
from tests.support.questions import is_set, wait_until


class Killed(Exception):
    """The process is gone. Nobody catches this: it ends whatever the client does."""


@dataclass
class Mortal(httpx.AsyncBaseTransport):
    """A client's way to the aggregator, and its death: once, of a request that has not arrived or of its answer."""

    inner: httpx.AsyncBaseTransport
    settings: ClientSettings
    grave: ClientSettings
    path: re.Pattern[str] = re.compile("never")
    answered: bool = False
    dead: threading.Event = field(default_factory=threading.Event)

    def strike(self) -> None:
        # Lists go on being written while a silo lives, in files that follow from its model.
        lists = shutil.ignore_patterns("lists-*")
        shutil.copytree(self.settings.state_directory, self.grave.state_directory, ignore=lists)
        self.dead.set()
        raise Killed

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.dead.is_set():
            raise Killed
        chosen = self.path.fullmatch(f"{request.method} {request.url.path}") is not None
        if chosen and not self.answered:
            self.strike()
        answer = await self.inner.handle_async_request(request)
        if self.dead.is_set():  # of something else, meanwhile
            raise Killed
        nothing_yet = request.method == "GET" and answer.status_code == httpx.codes.NO_CONTENT
        if chosen and not nothing_yet:  # else it dies of the next one
            self.strike()
        return answer


Plan = Callable[[pytest.MonkeyPatch, Mortal], None]


def on_the_line(pattern: str, *, answered: bool = False) -> Plan:
    def plan(_: pytest.MonkeyPatch, line: Mortal) -> None:
        line.path, line.answered = re.compile(pattern), answered

    return plan


@dataclass
class Killer:
    """Starts a client, waits until it has died as planned, and says with which settings it starts again."""

    monkeypatch: pytest.MonkeyPatch
    deaths: int = 0

    async def kill(self, running: Federation, settings: ClientSettings, plan: Plan) -> ClientSettings:
        self.deaths += 1
        copy = settings.state_directory.parent / f"after-{self.deaths}" / settings.name
        again = settings.model_copy(update={"state_directory": copy, "cache_directory": copy / "model"})
        line = Mortal(running.line(), settings, again)
        with self.monkeypatch.context() as patched, suppress(Killed):  # as a service ends whose agent has ended
            plan(patched, line)
            async with run_client(settings, running.settings.registry, line):
                await wait_until(is_set(line.dead))
        return again
