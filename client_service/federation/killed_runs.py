"""How often the system has killed this process amid a run's work -> a silo that refuses the run, and goes on serving.

Before a run's work is begun a mark is written, and taken away when it ends, in whatever way. A process that finds one
was killed: for lack of memory as a rule, whatever was estimated. A supervisor starts it again, and the same work would
kill it again, for ever, and with it all that the silo serves.
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
    """Of the processes that were killed amid a run, by what it did, and the one that does it now."""

    run: RunName
    deaths: dict[str, int] = Field(default_factory=dict)


class KilledRuns:
    """The file with the marks of one silo's newest run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._folder = folder

    @contextmanager
    def guard(self, run: str, phase: str) -> Iterator[None]:
        """Work of this phase of a run. SettingsError where so many processes have been killed in it."""
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
        expected = f"{run}: expected processes that live through its work ({phase})"
        got = f"got {count} processes killed amid it, as the system does where memory is short"
        todo = f"give it more memory, then delete {self._path.name} in the state directory, or wait for the next run"
        return f"{expected}, {got}; this silo takes no part in the run and goes on serving: {todo}"

    def _read(self, run: str) -> dict[str, int]:
        """Of this run; of another one nothing counts any more."""
        found = load_message(self._path, KillCounts)
        return dict(found.deaths) if found is not None and found.run == run else {}

    def _write(self, run: str, deaths: dict[str, int]) -> None:
        """It is for a process that is killed, which takes nothing of what the system was given: no disk is waited
        for."""
        if not deaths:
            self._path.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"run": run, "deaths": deaths}), encoding="utf-8")
        new.replace(self._path)
