"""A plan and a crew of silos -> a run, round by round, by the functions that the services use.

Each round has two steps: every silo gives its update, and, once the state after the round is kept, takes its answer.
The same plan in the same folder goes on from there, whatever interrupted it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from shared.errors import DataError, SettingsError
from shared.method.declaration import Part
from shared.protocol.schemas import RoundOut, RunHistoryOut, RunIn
from simulation.engines.host import SiloReply, Verb
from simulation.engines.kept import KeptRun, RunFolder
from simulation.engines.server import RunServer
from simulation.engines.silo import Terms

Note = Callable[[SiloReply, int, Part], None]
"""(a reply, the rounds and the part of its run) -> taken note of."""


class Crew(Protocol):
    """Whoever can be asked for the silos."""

    def ask(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Let each of these silos do one thing of `SiloRun` with its arguments; their replies as they come."""


@dataclass(frozen=True)
class RunPlan:
    """What is to be run. folder: for what is kept. names: of the silos. request: its `clients` is their number."""

    folder: Path
    strategy: str
    names: tuple[str, ...]
    request: RunIn


@dataclass(frozen=True)
class HeldRun:
    """How a run went. seconds: over all processes that worked on it."""

    history: RunHistoryOut
    seconds: float


def ignore_reply(reply: SiloReply, rounds: int, part: Part) -> None:
    """The note of a run whose silos tell nothing of themselves."""
    del reply, rounds, part


def hold_runs(plan: RunPlan, crew: Crew, note: Note = ignore_reply) -> HeldRun:
    """The run of the plan, after a basis run where its method has a common basis. SettingsError for what only the
    aggregator service does."""
    require_plain_method(plan.request)
    method, name, spent = plan.request.method, "run-1", 0.0
    if method.basis.kind != "off":
        request = plan.request.model_copy(update={"part": "basis", "rounds": method.basis.rounds_needed})
        spent = _EngineRun(replace(plan, request=request), crew, note, name).hold().seconds
        plan, name = replace(plan, request=plan.request.model_copy(update={"basis": name})), "run-2"
    held = _EngineRun(plan, crew, note, name).hold()
    return replace(held, seconds=held.seconds + spent)


def require_plain_method(request: RunIn) -> None:
    """SettingsError for what the aggregator service alone does."""
    if request.method.quarantine_factor:
        raise SettingsError("quarantine_factor: expected 0, because only the aggregator service shuts clients out")
    if (size := request.method.anchor.size) != "declared":
        raise SettingsError(f"anchor.size: expected declared, because no silo gives its counts here, got {size}")


class _EngineRun:
    def __init__(self, plan: RunPlan, crew: Crew, note: Note, name: str) -> None:
        self._plan, self._crew, self._note, self._name = plan, crew, note, name
        self._server, self._folder = RunServer(plan.request, plan.strategy), RunFolder(plan.folder, name)
        self._since = time.perf_counter()
        found = self._folder.load(plan.request)
        if found is not None and found.round:
            self._server.restore(self._folder.load_state(found), found.latest)
        self._kept = found or self._folder.keep(KeptRun(request=plan.request, started_at=_now()))

    def hold(self) -> HeldRun:
        """Every round that is left, and each silo's last evaluation."""
        terms = Terms(self._name, self._plan.request)
        applied = self._ask("begin", dict.fromkeys(self._plan.names, (terms, self._server.start, self._kept.round)))
        self._catch_up(applied)
        for number in range(self._kept.round + 1, self._plan.request.rounds + 1):
            self._hold_round(number)
        self._ask("finish", dict.fromkeys(self._plan.names, ()))
        self._keep()
        return HeldRun(self._history(), self._kept.seconds)

    def _catch_up(self, applied: Mapping[str, int]) -> None:
        """Silos that were interrupted in the last round that was aggregated do it again; its state stays."""
        closed = self._kept.round
        if lost := sorted(name for name, number in applied.items() if number < closed - 1):
            raise DataError(f"{lost[0]}: expected its training after round {closed - 1}, it is gone: take a new folder")
        if behind := [name for name, number in applied.items() if number < closed]:
            self._apply(closed, self._ask("fit", dict.fromkeys(behind, (closed,))))

    def _hold_round(self, number: int) -> None:
        opened = _now()
        bodies = self._ask("fit", dict.fromkeys(self._plan.names, (number,)))
        state = self._server.close_round(bodies)
        self._keep_round(number, opened, bodies, state)
        self._apply(number, bodies)

    def _apply(self, number: int, bodies: Mapping[str, bytes]) -> None:
        self._ask("apply", {name: (number, self._server.answer(name, body)) for name, body in bodies.items()})

    def _keep_round(self, number: int, opened: str, bodies: Mapping[str, bytes], state: bytes) -> None:
        now = _now()
        rows = tuple(self._server.describe_update(name, body, now) for name, body in sorted(bodies.items()))
        held = RoundOut(number=number, phase="aggregated", opened_at=opened, closed_at=now, participants=rows)
        latest = {client: dict(scalars) for client, scalars in self._server.state.latest.items()}
        self._keep(state, round=number, rounds=(*self._kept.rounds, held), latest=latest)

    def _keep(self, state: bytes | None = None, **changes: object) -> None:
        now = time.perf_counter()
        seconds, self._since = self._kept.seconds + now - self._since, now
        self._kept = self._folder.keep(self._kept.model_copy(update={"seconds": seconds, **changes}), state)

    def _ask(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Each silo's value, by name; every reply is noted before the next step."""
        values, request = {}, self._plan.request
        for reply in self._crew.ask(verb, each):
            self._note(reply, request.rounds, request.part)
            values[reply.client] = reply.value
        return values

    def _history(self) -> RunHistoryOut:
        return RunHistoryOut(
            run=self._name,
            phase="finished",
            request=self._plan.request,
            started_at=self._kept.started_at,
            enrolled=tuple(sorted(self._plan.names)),
            rounds=self._kept.rounds,
        )


def _now() -> str:
    """UTC, ISO 8601, as the services write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
