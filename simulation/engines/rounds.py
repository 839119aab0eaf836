"""Run without network: both halves of each round, and its state on disk."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationError

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from aggregator_service.rounds.history import server_scalars, visible_scalars
from shared.errors import DataError, SettingsError
from shared.files import replace_file
from shared.message import Message
from shared.method.declaration import TRAINING, Part
from shared.method.parameters import Scalars, State, Update
from shared.protocol.schemas import ParticipantOut, RoundOut, RunHistoryOut, RunIn
from shared.protocol.wire import decode_body, encode_body, require_content
from shared.strategies import strategy_of_part
from shared.sums import find_sum, list_sums, method_of_part
from shared.sums.sum import BASIS
from simulation.engines.host import SiloReply, Verb
from simulation.engines.silo import RunTerms


class RunServer:
    """Aggregator of one run.

    state: after the last round that was closed, or at the start of the run.
    """

    def __init__(self, request: RunIn, strategy: str) -> None:
        self.strategy = strategy_of_part(request.part, strategy, request.method)
        self._declaration = self.strategy.declaration(request.method)
        self.state = State(self.strategy.start(request.method, request.seed))
        self.start = encode_body(self.strategy.common_answer(self.state))

    def restore(self, stored: bytes, latest: Mapping[str, Scalars]) -> None:
        """Continues from a stored state."""
        self.state = unpack_state(decode_body(stored)[1], latest)

    def close_round(self, bodies: Mapping[str, bytes]) -> bytes:
        """Aggregates the updates of a round by client; returns the state after it, encoded.

        Raises ProtocolError for an update that was not declared.
        """
        after = self.strategy.aggregate(self.state, [self.read_update(*item) for item in sorted(bodies.items())])
        stored = encode_body(pack_state(after))
        self.restore(stored, after.latest)
        return stored

    def answer(self, client: str, body: bytes) -> bytes:
        """Returns a client's personalised parameters after the round."""
        return encode_body(self.strategy.personalise(self.state, self.read_update(client, body)))

    def read_update(self, client: str, body: bytes) -> Update:
        """Decodes a body as an update; raises ProtocolError for undeclared content."""
        specification, content = decode_body(body)
        require_content(self._declaration, specification, content)
        return Update(client, content.arrays, content.scalars)

    def describe_update(self, client: str, body: bytes, received_at: str) -> ParticipantOut:
        """Builds a client's row in the history of the round just closed."""
        return ParticipantOut(
            client=client,
            received=True,
            size=len(body),
            digest=hashlib.sha256(body).hexdigest(),
            received_at=received_at,
            scalars=visible_scalars(self.strategy, self.state.latest.get(client, {})),
            told=dict(server_scalars(self.strategy, self.state.latest, client)),
        )


FOLDER = "engine"


class RunCheckpoint(Message):
    """Checkpoint of a run.

    round: the last one aggregated; 0: none. state: sha256 of the state after it. seconds, silo_seconds: spent so far,
    and by the silos' processors, over all processes that worked on it. round_seconds: of each round that was not
    interrupted. latest: the last scalars of each client.
    """

    request: RunIn
    started_at: str
    round: int = 0
    state: str = ""
    seconds: float = 0.0
    silo_seconds: float = 0.0
    round_seconds: tuple[float, ...] = ()
    latest: Mapping[str, Mapping[str, float]] = Field(default_factory=dict)
    rounds: tuple[RoundOut, ...] = ()


class RunFolder:
    """Files of one run, by its name."""

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._document = folder / FOLDER, folder / FOLDER / f"{run}.json"
        self._run = run

    def load(self, request: RunIn) -> RunCheckpoint | None:
        """Loads the checkpoint of this run; None without one.

        Raises DataError for another run's, or a damaged document.
        """
        try:
            kept = RunCheckpoint.model_validate_json(self._document.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise DataError(
                f"{self._document}: expected a run's checkpoint, got another file: use a new folder"
            ) from None
        if kept.request != request:
            raise DataError(f"{self._document}: expected a run of the same settings, got another: use a new folder")
        return kept

    def load_state(self, kept: RunCheckpoint) -> bytes:
        """Loads the state after the last round.

        Raises DataError if the file differs from the checkpoint.
        """
        path = self._state(kept.round)
        content = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(content).hexdigest() != kept.state:
            raise DataError(f"{path}: expected the state after round {kept.round}, got another content")
        return content

    def keep(self, kept: RunCheckpoint, state: bytes | None = None) -> RunCheckpoint:
        """Saves a checkpoint, and deletes earlier states.

        A new state is written before the document that names it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if state is not None:
            kept = kept.model_copy(update={"state": hashlib.sha256(state).hexdigest()})
            replace_file(self._state(kept.round), state)
        replace_file(self._document, kept.model_dump_json().encode())
        for path in self._folder.glob(f"{self._run}-*.safetensors"):
            if path != self._state(kept.round):
                path.unlink()
        return kept

    def _state(self, number: int) -> Path:
        return self._folder / f"{self._run}-{number}.safetensors"


Note = Callable[[SiloReply, int, Part], None]
"""(a reply, the rounds of its run, the part of its run) -> None: records the reply."""


class Workers(Protocol):
    """Workers that call the silos."""

    def call(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Calls a method of `SiloRun` on each of these silos; yields replies as they come."""


@dataclass(frozen=True)
class RunPlan:
    """Plan of a run.

    folder: of its checkpoints. names: of the silos. request: its `clients` is their number.
    """

    folder: Path
    strategy: str
    names: tuple[str, ...]
    request: RunIn


@dataclass(frozen=True)
class EngineResult:
    """Result of a run.

    seconds: over all processes that worked on it. silo_seconds: of the processor, for the silos' own work.
    round_seconds: of each round of the training run, by the clock.
    """

    history: RunHistoryOut
    seconds: float
    silo_seconds: float = 0.0
    round_seconds: tuple[float, ...] = ()


def ignore_reply(reply: SiloReply, rounds: int, part: Part) -> None:
    """Ignores a reply, for runs whose silos give no report."""
    del reply, rounds, part


def execute_runs(plan: RunPlan, workers: Workers, note: Note = ignore_reply) -> EngineResult:
    """Runs the plan, after one run for each sum that its method has.

    Raises SettingsError for a request that only the aggregator service can run.
    """
    require_plain_method(plan.request)
    sums: list[EngineResult] = []
    basis, parts = None, tuple(list_sums(plan.request.method))
    for number, part in enumerate(parts, 1):
        method, name = method_of_part(plan.request.method, part), f"run-{number}"
        rounds = find_sum(method).rounds(method.basis)
        request = plan.request.model_copy(update={"part": part, "rounds": rounds, "method": method})
        sums.append(_EngineRun(replace(plan, request=request), workers, note, name).hold())
        basis = name if part == BASIS else basis
    training = {"method": method_of_part(plan.request.method, TRAINING)} | ({} if basis is None else {"basis": basis})
    plan = replace(plan, request=plan.request.model_copy(update=training))
    held = _EngineRun(plan, workers, note, f"run-{len(parts) + 1}").hold()
    return EngineResult(
        held.history,
        held.seconds + sum(one.seconds for one in sums),
        held.silo_seconds + sum(one.silo_seconds for one in sums),
        held.round_seconds,
    )


def require_plain_method(request: RunIn) -> None:
    """Raises SettingsError for a request that only the aggregator service can run."""
    if request.method.strategy.get("send", True) in (False, "false"):
        words = "expected true, because here a run that trains makes the silos' models: --engine services needs none"
        raise SettingsError(f"strategy.send: {words}, got false")
    if request.method.quarantine_factor:
        raise SettingsError("quarantine_factor: expected 0, because only the aggregator service shuts clients out")
    if (size := request.method.anchor.size) != "declared":
        raise SettingsError(f"anchor.size: expected declared, because no silo gives its counts here, got {size}")


class _Answers(Mapping[str, tuple[int, bytes]]):
    """Answers of a round by client, each made when it is asked for.

    All of them together would fill the memory.
    """

    def __init__(self, server: RunServer, number: int, bodies: Mapping[str, bytes]) -> None:
        self._server, self._number, self._bodies = server, number, bodies

    def __getitem__(self, client: str) -> tuple[int, bytes]:
        return self._number, self._server.answer(client, self._bodies[client])

    def __iter__(self) -> Iterator[str]:
        return iter(self._bodies)

    def __len__(self) -> int:
        return len(self._bodies)


class _EngineRun:
    def __init__(self, plan: RunPlan, workers: Workers, note: Note, name: str) -> None:
        self._plan, self._workers, self._note, self._name = plan, workers, note, name
        self._server, self._folder = RunServer(plan.request, plan.strategy), RunFolder(plan.folder, name)
        self._since, self._silo_seconds = time.perf_counter(), 0.0
        found = self._folder.load(plan.request)
        if found is not None and found.round:
            self._server.restore(self._folder.load_state(found), found.latest)
        self._kept = found or self._folder.keep(RunCheckpoint(request=plan.request, started_at=_now()))

    def hold(self) -> EngineResult:
        """Runs every remaining round, and each silo's last evaluation."""
        terms = RunTerms(self._name, self._plan.request)
        applied = self._call("begin", dict.fromkeys(self._plan.names, (terms, self._server.start, self._kept.round)))
        self._catch_up(applied)
        for number in range(self._kept.round + 1, self._plan.request.rounds + 1):
            began = time.perf_counter()
            self._run_round(number)
            passed = (*self._kept.round_seconds, time.perf_counter() - began)
            self._kept = self._kept.model_copy(update={"round_seconds": passed})
        self._call("finish", dict.fromkeys(self._plan.names, ()))
        self._keep()
        return EngineResult(self._history(), self._kept.seconds, self._kept.silo_seconds, self._kept.round_seconds)

    def _catch_up(self, applied: Mapping[str, int]) -> None:
        """Repeats the last aggregated round at silos that were interrupted in it.

        The state stays as it is.
        """
        closed = self._kept.round
        if lost := sorted(name for name, number in applied.items() if number < closed - 1):
            raise DataError(
                f"{lost[0]}: expected its training after round {closed - 1}, it is missing: use a new folder"
            )
        if behind := [name for name, number in applied.items() if number < closed]:
            self._apply(closed, self._call("fit", dict.fromkeys(behind, (closed,))))

    def _run_round(self, number: int) -> None:
        opened = _now()
        bodies = self._call("fit", dict.fromkeys(self._plan.names, (number,)))
        state = self._server.close_round(bodies)
        self._keep_round(number, opened, bodies, state)
        self._apply(number, bodies)

    def _apply(self, number: int, bodies: Mapping[str, bytes]) -> None:
        self._call("apply", _Answers(self._server, number, bodies))

    def _keep_round(self, number: int, opened: str, bodies: Mapping[str, bytes], state: bytes) -> None:
        now = _now()
        rows = tuple(self._server.describe_update(name, body, now) for name, body in sorted(bodies.items()))
        held = RoundOut(number=number, phase="aggregated", opened_at=opened, closed_at=now, participants=rows)
        latest = {client: dict(scalars) for client, scalars in self._server.state.latest.items()}
        self._keep(state, round=number, rounds=(*self._kept.rounds, held), latest=latest)

    def _keep(self, state: bytes | None = None, **changes: object) -> None:
        now = time.perf_counter()
        seconds, self._since = self._kept.seconds + now - self._since, now
        silo_seconds, self._silo_seconds = self._kept.silo_seconds + self._silo_seconds, 0.0
        spent = {"seconds": seconds, "silo_seconds": silo_seconds}
        self._kept = self._folder.keep(self._kept.model_copy(update={**spent, **changes}), state)

    def _call(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Calls the silos and returns each one's value by name.

        Every reply is noted before the next step.
        """
        values, request = {}, self._plan.request
        for reply in self._workers.call(verb, each):
            self._note(reply, request.rounds, request.part)
            values[reply.client] = reply.value
            self._silo_seconds += 0.0 if reply.report is None else reply.report.seconds
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
    """Returns the time in UTC, ISO 8601, as the services write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
