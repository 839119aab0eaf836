"""Counts processes that the system killed during a run, and refuses such a run.

A mark is written before a run's work begins, and removed when the work ends or fails. A process that finds a mark at
its start knows that the process before was killed, usually for lack of memory. A supervisor starts the client again,
and the same work would kill it again and again, so that the silo could not answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from client_service.runtime.logs import LOGGER
from shared.errors import SettingsError
from shared.files import load_message
from shared.message import Message
from shared.protocol.schemas import RunName

NAME = "killed.json"
MOST_DEATHS = 3  # in one kind of work of a run


class KillCounts(Message):
    """Killed processes of a run by phase of work, with the current one."""

    run: RunName
    deaths: dict[str, int] = Field(default_factory=dict)


class KilledRuns:
    """File with the marks of one silo's newest run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._folder = folder

    @contextmanager
    def guard(self, run: str, phase: str) -> Iterator[None]:
        """Marks a phase of a run as begun, and removes the mark afterwards.

        Raises SettingsError if too many processes were killed in it.
        """
        known = self._read(run)
        if (count := known.get(phase, 0)) >= MOST_DEATHS:
            raise SettingsError(self._refusal(run, phase, count))
        if count:
            LOGGER.warning("killed_amid_run", run=run, phase=phase, deaths=count)
        self._write(run, {**known, phase: count + 1})
        try:
            yield
        finally:
            left = {name: deaths for name, deaths in self._read(run).items() if name != phase}
            self._write(run, left)

    def _refusal(self, run: str, phase: str, count: int) -> str:
        expected = f"{run}: expected its work to end ({phase})"
        got = f"got {count} processes killed during it, as the system does when memory is short"
        todo = f"give it more memory, then delete {self._path.name} in the state directory, or wait for the next run"
        return f"{expected}, {got}; this silo leaves the run and still answers: {todo}"

    def _read(self, run: str) -> dict[str, int]:
        """Reads the counts of a run; those of another run do not count."""
        found = load_message(self._path, KillCounts)
        return dict(found.deaths) if found is not None and found.run == run else {}

    def _write(self, run: str, deaths: dict[str, int]) -> None:
        """Writes the counts without waiting for the disk.

        A killed process loses nothing that the system was given.
        """
        if not deaths:
            self._path.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"run": run, "deaths": deaths}), encoding="utf-8")
        new.replace(self._path)
