"""An experiment and a crew that hosts its silos -> the outcome, round by round, by the functions that the services use.

Everything is kept in the experiment's folder after each step: the state after a round before anybody is told of it, and
each silo's own files as soon as it has answered. The same experiment in the same folder goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from client_service.schemas import QualityOut, StatusOut
from shared.errors import DataError, SettingsError
from shared.protocol.schemas import RoundOut, RunHistoryOut, RunIn
from simulation.engines.folders import read_files, write_changes
from simulation.engines.host import SiloOrder, SiloReply, Verb
from simulation.engines.kept import KeptRun, RunFolder
from simulation.engines.server import RunServer
from simulation.engines.silo import Terms
from simulation.experiment import Experiment
from simulation.federation import Observe, Outcome, Progress


class Crew(Protocol):
    """Whoever hosts silos."""

    def take_in(self, orders: Iterator[SiloOrder]) -> None:
        """Host these silos, each until the crew is left."""

    def ask(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Let each of these silos do one thing with its arguments; their replies as they come."""


def conduct_experiment(experiment: Experiment, observe: Observe, crew: Crew) -> Outcome:
    """Run the experiment, or what is left of it. SettingsError for what only services do."""
    require_open_run(experiment)
    crew.take_in(_order_silos(experiment))
    request, name = experiment.run_request(), "run-1"
    if request.method.basis.kind != "off":
        rounds = request.method.basis.rounds_needed
        _EngineRun(
            experiment, observe, crew, name, request.model_copy(update={"part": "basis", "rounds": rounds})
        ).hold()
        request, name = request.model_copy(update={"basis": name}), "run-2"
    return _EngineRun(experiment, observe, crew, name, request).hold()


def require_open_run(experiment: Experiment) -> None:
    """SettingsError for an experiment that needs the services' boundary."""
    method = experiment.method
    for flag, asked in (("--secure", experiment.secure), ("--privacy", bool(experiment.privacy))):
        if asked:
            raise SettingsError(f"{flag}: expected it with --engine services alone, because others have no boundary")
    if method.quarantine_factor:
        raise SettingsError("quarantine_factor: expected 0, because only the aggregator service shuts clients out")
    if method.anchor.size != "declared":
        raise SettingsError(f"anchor.size: expected declared, got {method.anchor.size}")


def _order_silos(experiment: Experiment) -> Iterator[SiloOrder]:
    """One after the other, so that not all shards are in memory at once."""
    catalogue = None if experiment.catalogue is None else experiment.catalogue.read_bytes()
    for shard in experiment.shards:
        kept = read_files(experiment.state_of(shard))
        yield SiloOrder(experiment.make_silo_settings(shard), read_files(shard), kept, catalogue)


class _EngineRun:
    def __init__(self, experiment: Experiment, observe: Observe, crew: Crew, name: str, request: RunIn) -> None:
        self._experiment, self._observe, self._crew = experiment, observe, crew
        self._name, self._request = name, request
        self._server, self._folder = RunServer(request, experiment.strategy), RunFolder(experiment.folder, name)
        self._statuses: dict[str, StatusOut] = {}
        self._qualities: dict[str, QualityOut] = {}
        self._since = time.perf_counter()
        found = self._folder.load(request)
        if found is not None and found.round:
            self._server.restore(self._folder.load_state(found), found.latest)
        self._kept = found or self._folder.keep(KeptRun(request=request, started_at=_now()))

    def hold(self) -> Outcome:
        """Every round that is left, and each silo's last evaluation."""
        terms = Terms(self._name, self._request)
        applied = self._ask("begin", dict.fromkeys(self._names, (terms, self._server.start, self._kept.round)))
        self._catch_up(applied)
        for number in range(self._kept.round + 1, self._request.rounds + 1):
            self._hold_round(number)
        self._ask("finish", dict.fromkeys(self._names, ()))
        self._keep()
        return Outcome(
            history=self._history(), qualities=self._qualities, statuses=self._statuses, seconds=self._kept.seconds
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return self._experiment.names

    def _catch_up(self, applied: Mapping[str, int]) -> None:
        """Silos that were interrupted in the last round that was aggregated do it again; its state stays."""
        closed = self._kept.round
        if lost := sorted(name for name, number in applied.items() if number < closed - 1):
            raise DataError(f"{lost[0]}: expected its training after round {closed - 1}, it is gone: take a new folder")
        if behind := [name for name, number in applied.items() if number < closed]:
            self._apply(closed, self._ask("fit", dict.fromkeys(behind, (closed,))))

    def _hold_round(self, number: int) -> None:
        opened = _now()
        bodies = self._ask("fit", dict.fromkeys(self._names, (number,)))
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
        rounds = (*self._kept.rounds, held)
        self._keep(state, round=number, rounds=rounds, latest=latest)

    def _keep(self, state: bytes | None = None, **changes: object) -> None:
        now = time.perf_counter()
        seconds, self._since = self._kept.seconds + now - self._since, now
        self._kept = self._folder.keep(self._kept.model_copy(update={"seconds": seconds, **changes}), state)

    def _ask(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Each silo's value, by name. What it has written is in its folder here before the next verb."""
        values = {}
        for reply in self._crew.ask(verb, each):
            write_changes(self._experiment.folder / reply.client, reply.changes)
            values[reply.client] = reply.value
            self._statuses[reply.client], self._qualities[reply.client] = reply.status, reply.quality
            seconds = self._kept.seconds + time.perf_counter() - self._since
            self._observe(Progress(self._statuses, self._request.rounds, seconds, self._request.part))
        return values

    def _history(self) -> RunHistoryOut:
        kept, names = self._kept, tuple(sorted(self._names))
        return RunHistoryOut(
            run=self._name,
            phase="finished",
            request=self._request,
            started_at=kept.started_at,
            enrolled=names,
            rounds=kept.rounds,
        )


def _now() -> str:
    """UTC, ISO 8601, as the services write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
