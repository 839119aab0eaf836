"""Case of the audit: each client with its attempts, and the aggregator's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from audit.evidence.evidence import PartEvidence, ProbeSending
from client_service.boundary.call_attempts import Attempt, list_attempts
from shared.errors import DataError
from shared.method.declaration import TRAINING, Declaration
from shared.protocol.schemas import ENDED, ArrivalOut, ParticipantOut, RunHistoryOut

_ATTEMPTS = TypeAdapter(tuple[Attempt, ...])


@dataclass(frozen=True)
class AuditedClient:
    """Evidence of one client, with the attempts on its ledger, in order."""

    evidence: PartEvidence
    declaration: Declaration
    attempts: tuple[Attempt, ...]

    def attempts_of(self, *calls: str) -> list[Attempt]:
        """Lists the attempts of these calls, in order."""
        return [attempt for attempt in self.attempts if attempt.call in calls]


@dataclass(frozen=True)
class AuditCase:
    """All evidence of an audit. `aggregator`: None if it has given none."""

    clients: Mapping[str, AuditedClient]
    aggregator: PartEvidence | None
    parts: tuple[PartEvidence, ...]

    @property
    def arrivals(self) -> tuple[ArrivalOut, ...]:
        """Aggregator's record of arrivals; empty without its evidence."""
        return () if self.aggregator is None else self.aggregator.arrivals

    @property
    def runs(self) -> tuple[RunHistoryOut, ...]:
        """Aggregator's runs; empty without its evidence."""
        return () if self.aggregator is None else self.aggregator.runs

    @property
    def known_clients(self) -> tuple[str, ...]:
        """Clients that the aggregator's record names."""
        arrived = {arrival.client for arrival in self.arrivals}
        enrolled = {client for run in self.runs for client in (*run.enrolled, *run.missing)}
        return tuple(sorted(arrived | enrolled | {client for _, _, client in self.held_updates}))

    @property
    def held_updates(self) -> dict[tuple[str, int, str], ParticipantOut]:
        """Updates that the aggregator holds, by run, round and client."""
        return {
            (run.run, entry.number, participant.client): participant
            for run in self.runs
            for entry in run.rounds
            for participant in entry.participants
            if participant.received
        }

    def declared_for(self, client: AuditedClient, attempt: Attempt) -> Declaration:
        """Returns the client's declaration for the part of an update's run.

        The part is that of the aggregator's record; without that record the part whose tensors the update holds.
        """
        declaration = client.declaration
        part = next((run.request.part for run in self.runs if run.run == attempt.run), None)
        if part is not None and (part == TRAINING or part in declaration.sums):
            return declaration.of_part(part)
        return declaration.with_tensors(attempt.tensor_names)

    @property
    def active_runs(self) -> tuple[str, ...]:
        """Runs in progress when the evidence was taken.

        The parts' records need not agree yet.
        """
        return tuple(run.run for run in self.runs if run.phase not in ENDED)

    @property
    def probe_sendings(self) -> dict[str, tuple[ProbeSending, ...]]:
        """Bodies that the probes of each client have sent past its gate."""
        return {name: client.evidence.sent for name, client in self.clients.items()}


def open_case(parts: Sequence[PartEvidence]) -> AuditCase:
    """Makes a case of the parts' evidence.

    Raises DataError if a part has given evidence twice, or for a ledger that no client could have written.
    """
    names = [part.name for part in parts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"expected one evidence file for each part, got several of {', '.join(twice)}")
    aggregators = [part for part in parts if part.role == "aggregator"]
    if len(aggregators) > 1:
        raise DataError(f"expected the evidence of one aggregator, got {len(aggregators)}")
    clients = {
        part.name: _read_client(part) for part in sorted(parts, key=lambda part: part.name) if part.role == "client"
    }
    return AuditCase(clients, aggregators[0] if aggregators else None, tuple(parts))


def _read_client(part: PartEvidence) -> AuditedClient:
    if part.declaration is None:
        raise DataError(f"{part.name}: expected a client's declaration in its evidence, got none")
    try:
        attempts = _ATTEMPTS.validate_python(tuple(list_attempts(part.entries)))
    except (TypeError, ValueError, ValidationError):
        raise DataError(f"{part.name}: expected ledger entries that a client has written, got others") from None
    return AuditedClient(part, part.declaration, attempts)
