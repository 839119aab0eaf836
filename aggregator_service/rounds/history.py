"""Views of a run: history for the operator, state for one client."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from aggregator_service.rounds import secure_run
from aggregator_service.rounds.run import Run, decode_run, load_run
from aggregator_service.rounds.secure_run import select_awaited
from aggregator_service.storage.clients import quarantine_times
from aggregator_service.storage.database import Database
from aggregator_service.storage.locations import Archive
from aggregator_service.storage.records import StoredState, StoredUpdate, instant
from aggregator_service.storage.run_store import run_documents, stored_states, stored_updates
from shared.errors import NotFoundError
from shared.method.declaration import TRAINING
from shared.method.parameters import Scalars
from shared.protocol.schemas import (
    ParticipantOut,
    Phase,
    RoundOut,
    RunHistoryOut,
    RunOut,
    SecureOut,
    Standing,
    SummedOut,
)
from shared.protocol.secure.server import PHASES, SecureRound
from shared.strategies.strategy import Strategy

NO_TIME_LEFT = '"seconds_left":0.0'  # first of its kind in a state's text: within a string it would have other quotes
QuarantineTimes = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class RoundTimes:
    """Times when a round opened and closed; None while it is open."""

    number: int
    phase: Phase
    opened_at: float
    closed_at: float | None


def run_histories(database: Database) -> list[RunHistoryOut]:
    """Returns every run, oldest first, without its rounds."""
    return [_summarise_run(decode_run(document)) for document in run_documents(database)]


def run_history(archive: Archive, name: str) -> RunHistoryOut:
    """Returns a run with all its rounds; raises NotFoundError for an unknown name."""
    with archive.database.reading() as connection:
        run = load_run(connection, name)
        if run is None:
            raise NotFoundError(f"there is no run {name!r}")
        states, updates = stored_states(connection, name), stored_updates(connection, name)
        quarantined_at = quarantine_times(connection)
    strategy = archive.strategy(run.request)
    rounds = _round_histories(run, strategy, states, updates, quarantined_at)
    missing = rounds[-1].missing if run.phase == "open" else ()
    enrolled = tuple(sorted(run.enrolled))
    head = _summarise_run(run)
    summed = None if head.sum is None else _add_costs(head.sum, rounds)
    known = {"rounds": rounds, "enrolled": enrolled, "missing": missing, "sum": summed}
    return head.model_copy(update=known)


def _add_costs(summed: SummedOut, rounds: Sequence[RoundOut]) -> SummedOut:
    """Adds to a sum the bytes and seconds that it has cost so far."""
    received = sum(part.size for one in rounds for part in one.participants if part.received)
    seconds = None
    if rounds and (closed := rounds[-1].closed_at) is not None:
        seconds = (datetime.fromisoformat(closed) - datetime.fromisoformat(rounds[0].opened_at)).total_seconds()
    return summed.model_copy(update={"bytes": received, "seconds": seconds})


def _summarise_run(run: Run) -> RunHistoryOut:
    part = run.request.part
    return RunHistoryOut(
        run=run.name,
        phase=run.phase,
        reason=run.reason,
        request=run.request,
        sum=None if part == TRAINING else _describe_sum(run),
        started_at=instant(run.started_at),
        deadline_at=instant(run.deadline) if run.phase in ("waiting", "open") else None,
    )


def _describe_sum(run: Run) -> SummedOut:
    kind, why = run.request.method.basis.kind, run.request.why or ""
    return SummedOut(kind=kind, reason=why, opened=run.phase == "finished")


def _round_histories(
    run: Run,
    strategy: Strategy,
    states: Collection[StoredState],
    updates: Collection[StoredUpdate],
    quarantined_at: Mapping[str, QuarantineTimes],
) -> tuple[RoundOut, ...]:
    first_rounds = _first_rounds(run)
    received = _participants(strategy, updates, {state.round: state.latest for state in states})
    histories = []
    for times in _round_times(run, states):
        expected = [client for client, first in first_rounds.items() if first <= times.number]
        absent = {
            client: _absent_participant(client, times.closed_at, quarantined_at.get(client, ())) for client in expected
        }
        exchange = run.exchange if times.phase == "open" else None
        histories.append(_round_history(times, absent | received.get(times.number, {}), exchange))
    return tuple(histories)


def _first_rounds(run: Run) -> Mapping[str, int]:
    """Returns the first round of each client.

    Late joiners of a fixed secure run are left out.
    """
    if run.pledge is None:
        return run.enrolled
    awaited = select_awaited(run.pledge, run.clients, changing_members=run.request.changing_members)
    return {client: first for client, first in run.enrolled.items() if first == 1 or client in awaited}


def _round_times(run: Run, states: Collection[StoredState]) -> list[RoundTimes]:
    """Returns the times of aggregated rounds and of the current round."""
    times = [RoundTimes(state.round, "aggregated", state.opened_at, state.closed_at) for state in states]
    if run.round > len(times):
        times.append(RoundTimes(run.round, run.phase, run.opened_at, run.closed_at))
    return times


def _round_history(
    times: RoundTimes, everybody: Mapping[str, ParticipantOut], exchange: SecureRound | None
) -> RoundOut:
    participants = tuple(everybody[client] for client in sorted(everybody))
    awaited = [participant.client for participant in participants if not participant.quarantined]
    missing = [part.client for part in participants if not (part.received or part.quarantined)]
    return RoundOut(
        number=times.number,
        phase=times.phase,
        secure=None if exchange is None else _secure_history(exchange, awaited),
        opened_at=instant(times.opened_at),
        closed_at=None if times.closed_at is None else instant(times.closed_at),
        missing=tuple(missing),
        participants=participants,
    )


def _secure_history(exchange: SecureRound, awaited: Sequence[str]) -> SecureOut:
    return SecureOut(
        step=exchange.phase,
        threshold=exchange.terms.threshold,
        came={phase: len(exchange.collected(phase)) for phase in PHASES},
        waiting_for=secure_run.expected_clients(exchange, awaited),
        expelled=tuple(sorted(exchange.expelled)),
    )


def _absent_participant(client: str, closed_at: float | None, times: QuarantineTimes) -> ParticipantOut:
    """Returns the row of a client without an update in a round.

    It is quarantined if it was so when the round closed, or is now for an open round.
    """
    moment = math.inf if closed_at is None else closed_at
    quarantined = any(since <= moment and (lifted_at or math.inf) >= moment for since, lifted_at in times)
    return ParticipantOut(client=client, received=False, quarantined=quarantined)


def _participants(
    strategy: Strategy, updates: Collection[StoredUpdate], latest: Mapping[int, Mapping[str, Scalars]]
) -> dict[int, dict[str, ParticipantOut]]:
    """Returns the clients that sent an update, as round to client to row.

    latest: the last scalars of all clients after each aggregated round.
    """
    by_round: dict[int, dict[str, ParticipantOut]] = {}
    for update in updates:
        receipt = update.receipt
        by_round.setdefault(receipt.round, {})[receipt.client] = ParticipantOut(
            client=receipt.client,
            received=True,
            size=receipt.size,
            digest=receipt.digest,
            received_at=instant(receipt.received_at),
            scalars=visible_scalars(strategy, update.scalars),
            told=server_scalars(strategy, latest.get(receipt.round, {}), receipt.client),
        )
    return by_round


def visible_scalars(strategy: Strategy, scalars: Scalars) -> dict[str, float]:
    """Returns the scalars of an update that the aggregator needs individually."""
    visible = {name for name, scalar in strategy.scalars.items() if scalar.visible}
    return {name: value for name, value in scalars.items() if name in visible}


def server_scalars(strategy: Strategy, latest: Mapping[str, Scalars], client: str) -> Scalars:
    """Returns the scalars that a client gets for mixing after a round.

    Empty where no client has sent the scalars from which they follow.
    """
    if strategy.mixing is None or not any(visible_scalars(strategy, scalars) for scalars in latest.values()):
        return {}
    return strategy.mixing.scalars_of(latest, client)


def run_for_client(run: Run, client: str, *, sequence: int, now: float) -> RunOut:
    """Returns the run as one client may see it, with only counts of the others."""
    return RunOut(
        sequence=sequence,
        run=run.name,
        phase=run.phase,
        round=run.round,
        rounds=run.request.rounds,
        seed=run.request.seed,
        seconds_left=max(0.0, run.deadline - now) if run.phase in ("waiting", "open") else None,
        deadline_seconds=run.request.deadline_seconds,
        standing=_client_status(run, client),
        joined=len(run.clients),
        received=len(run.receipts),
        threshold=run.exchange.terms.threshold if run.exchange else None,
        graph=run.exchange.terms.common.graph if run.exchange else None,
        changing_members=run.request.changing_members,
        method=run.request.method,
        part=run.request.part,
        basis=run.request.basis,
        items=run.request.items,
        content=run.request.content,
        over=run.request.over,
        makes_models=run.request.makes_models,
    )


class StateTexts:
    """JSON texts of a run's states, each written once.

    Only the time left is written anew.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._texts: dict[tuple[int, Standing], tuple[str, str, str]] = {}

    def write(self, run: Run, client: str, *, sequence: int, now: float) -> str:
        """Writes what `run_for_client` returns."""
        if run is not self._run:
            self._run, self._texts = run, {}
        known = sequence, _client_status(run, client)
        if (text := self._texts.get(known)) is None:
            state = run_for_client(run, client, sequence=sequence, now=run.deadline)
            text = self._texts[known] = state.model_dump_json(by_alias=True).partition(NO_TIME_LEFT)
        before, mark, after = text
        left = mark and f"{mark[:-3]}{max(0.0, run.deadline - now)!r}"
        return f"{before}{left}{after}"


def state_of_all(run: Run | None, clients: Collection[str], *, sequence: int, now: float) -> RunOut | None:
    """Returns the federation's state as each of these clients may see it.

    None if it differs among them.
    """
    if run is None:
        return RunOut(sequence=sequence, joined=len(clients))
    standings = {_client_status(run, client) for client in clients}
    if len(standings) != 1:
        return None
    return run_for_client(run, next(iter(clients)), sequence=sequence, now=now)


def _client_status(run: Run, client: str) -> Standing:
    if client in run.quarantined:
        return "quarantined"
    if run.exchange is not None and run.phase == "open":
        if client in run.exchange.answers:
            return "received"
        return "expected" if secure_run.is_active(run.exchange, client, run.awaited) else "absent"
    if client in run.receipts:
        return "received"
    return "expected" if run.active and client in run.clients else "absent"
