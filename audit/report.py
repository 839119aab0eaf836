"""Privacy report: what left, what came in, what was checked, and the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from audit.checks import ledgers, presence, records
from audit.checks import probes as probing
from audit.checks.findings import AuditFinding
from audit.checks.presence import RECORDS_ONLY, ReportRequirements
from audit.checks.probes import ProbeGroup
from audit.checks.request_heads import check_heads
from audit.checks.signatures import check_signatures
from audit.evidence.case import AuditCase, AuditedClient
from client_service.boundary.call_attempts import Attempt
from shared.message import Message
from shared.protocol.gate import warn_of_few_clients
from shared.protocol.schemas import ArrivalOut
from shared.protocol.signing.keys import PrivateKey
from shared.sums import list_allowed_sums
from shared.words import count_noun

_ATTEMPTS = TypeAdapter(tuple[Attempt, ...])
ALWAYS_OPEN = (
    "What the declared values themselves give away: they were trained on private data, and a client whose code was"
    " changed could write anything into them.",
    "How often and when a client asks, the nonces of questions without a body and their signatures, and calls under a"
    " secret that the aggregator does not know: the client's own gate alone holds these.",
    "Calls without a body: a ledger that was cut off after its last body looks whole.",
    "The machine and the container engine, and everyone who can change them.",
)


class CallTotal(Message):
    """Totals of one kind of call of one client."""

    client: str
    call: str
    calls: int
    bytes_up: int
    bytes_down: int


class ClientRound(Message):
    """Totals of one client in one round.

    receipt: whether the aggregator confirmed the body that left.
    """

    client: str
    run: str
    round: int
    tensors: int
    scalars: int
    bytes_up: int
    sha256: str
    receipt: bool
    bytes_down: int


class RefusedBody(Message):
    """Body that was refused by the aggregator and is on the client's ledger."""

    client: str
    arrival: ArrivalOut


class PrivacyReport(Message):
    """Report of an audit.

    crossings: every call of every client, as its ledger has it; repeated questions as one with `times`.
    """

    totals: tuple[CallTotal, ...]
    rounds: tuple[ClientRound, ...]
    crossings: dict[str, list[dict[str, Any]]]
    refused: tuple[RefusedBody, ...]
    probes: tuple[ProbeGroup, ...]
    findings: tuple[AuditFinding, ...]
    notes: tuple[str, ...]
    held: bool
    verdict: str
    not_covered: tuple[str, ...]


def make_report(
    case: AuditCase, requirements: ReportRequirements = RECORDS_ONLY, keys: Mapping[str, PrivateKey] | None = None
) -> PrivacyReport:
    """Makes the privacy report of a case, independent of the present time.

    requirements: evidence that must be there. keys: clients' private keys, to make their signatures again and
    compare.
    """
    matches = records.match_arrivals(case)
    probed = any(part.probes or part.sent for part in case.parts)
    findings = (
        presence.check_presence(case, requirements),
        presence.check_freshness(case, requirements),
        ledgers.check_chain(case),
        records.check_declarations(case),
        ledgers.check_calls(case),
        ledgers.check_fields(case),
        records.check_receipts(case),
        records.check_arrivals(case, matches),
        records.check_nonces(matches),
        records.check_acceptances(case, matches),
        records.check_refusals(case),
        records.check_undeclared(matches),
        check_heads(case, matches),
        *((check_signatures(case, keys),) if keys else ()),
        *((presence.check_coverage(case),) if requirements.probed else ()),
        *((probing.check_bodies(case), probing.check_verdicts(case)) if probed else ()),
    )
    held = all(finding.held for finding in findings)
    return PrivacyReport(
        totals=tuple(total for name, client in case.clients.items() for total in _call_totals(name, client)),
        rounds=tuple(entry for name, client in case.clients.items() for entry in _client_rounds(name, client)),
        crossings={name: _ATTEMPTS.dump_python(client.attempts, mode="json") for name, client in case.clients.items()},
        refused=tuple(
            RefusedBody(client=name, arrival=arrival)
            for name, matched in matches.items()
            for arrival in matched.refused_from("ledger")
        ),
        probes=probing.group_probes(case),
        findings=findings,
        notes=tuple(_report_notes(case)),
        held=held,
        verdict=_passing_claim(case) if held else _failing_claim(findings),
        not_covered=(*ALWAYS_OPEN, *_unmade_signatures(case, keys or {}), *_unprobed_parts(case)),
    )


def _unmade_signatures(case: AuditCase, keys: Mapping[str, PrivateKey]) -> Iterable[str]:
    if names := sorted(set(case.clients) - set(keys)):
        yield (
            f"Signatures of {', '.join(names)}: without the private key it is unknown whether a patched gate has"
            " hidden 31 bytes in each. The silo itself can: lpsfed ledger verify --arrivals."
        )


def _unprobed_parts(case: AuditCase) -> Iterable[str]:
    if names := probing.unprobed_parts(case):
        yield f"Ways out that were not probed: no probe of {', '.join(names)} is part of this evidence."


def _call_totals(name: str, client: AuditedClient) -> Iterable[CallTotal]:
    calls: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in client.attempts:
        calls[attempt.call].append(attempt)
    for call, made in calls.items():
        up, down = sum(attempt.bytes for attempt in made), sum(attempt.answer_bytes for attempt in made)
        yield CallTotal(
            client=name, call=call, calls=sum(attempt.times for attempt in made), bytes_up=up, bytes_down=down
        )


def _client_rounds(name: str, client: AuditedClient) -> Iterable[ClientRound]:
    rounds: defaultdict[tuple[str, int], list[Attempt]] = defaultdict(list)
    for attempt in client.attempts:
        if attempt.run is not None and attempt.round is not None:
            rounds[attempt.run, attempt.round].append(attempt)
    for (run, number), made in rounds.items():
        updates = [attempt for attempt in made if attempt.call == "update"]
        last = updates[-1] if updates else None
        yield ClientRound(
            client=name,
            run=run,
            round=number,
            tensors=0 if last is None else len(last.tensors),
            scalars=0 if last is None else len(last.scalars),
            bytes_up=sum(attempt.bytes for attempt in made),
            sha256="" if last is None else last.sha256,
            receipt=any(
                attempt.receipt is not None and attempt.receipt.get("digest") == attempt.sha256 for attempt in updates
            ),
            bytes_down=sum(attempt.answer_bytes for attempt in made),
        )


def _report_notes(case: AuditCase) -> Iterable[str]:
    for run in case.active_runs:
        yield f"{run} was in progress when the evidence was taken: both records may differ until it ends."
    yield from warn_of_few_clients(len({*case.known_clients, *case.clients}))
    for name, client in case.clients.items():
        joins = [entry.get("join") for entry in client.evidence.entries if entry.get("call") == "join"]
        if any(isinstance(join, dict) and join.get("counts") for join in joins):
            yield f"{name} has sent its numbers of users, items and interactions, which only its own policy can allow."
    yield from _basis_notes(case)


def _basis_notes(case: AuditCase) -> Iterable[str]:
    """Yields one note for all clients that have sent the same sums."""
    senders: defaultdict[str, list[str]] = defaultdict(list)
    for name, client in case.clients.items():
        for sums in _summed_statistics(client):
            senders[sums].append(name)
    for sums, names in senders.items():
        whose = names[0] if len(names) == 1 else f"{', '.join(names)}: each"
        yield f"{whose} has sent {sums}, which only its own policy can allow."


def _summed_statistics(client: AuditedClient) -> Iterable[str]:
    """Yields a description of each sum that a client has sent a part of."""
    for declared in client.declaration.sums.values():
        names = {spec.name for spec in declared.uploaded}
        sent = [attempt for attempt in client.attempts_of("update") if names and attempt.tensor_names == names]
        if not sent:
            continue
        how = "masked" if declared.secure else "in the open"
        size = sum(attempt.bytes for attempt in sent)
        much = f"{size:,} bytes in {count_noun(len(sent), 'update')}"
        known = list_allowed_sums(declared.strategy)  # none: the evidence is of another version, or was changed
        statistics, title = (
            (known[0].statistics, known[0].title) if known else ("statistics", f"the sum {declared.strategy!r}")
        )
        yield f"{statistics}, {how} ({', '.join(sorted(names))}: {much}) for {title}"


def _passing_claim(case: AuditCase) -> str:
    sent = [attempt for client in case.clients.values() for attempt in client.attempts if attempt.bytes]
    rounds = {(attempt.run, attempt.round) for attempt in sent if attempt.call == "update"}
    crossed = f"{count_noun(len(sent), 'body', 'bodies')}, {sum(attempt.bytes for attempt in sent):,} bytes"
    whose = f"{count_noun(len(case.clients), 'client')} in {count_noun(len(rounds), 'round')}"
    return f"Nothing undeclared crossed, and all that crossed is on record: {crossed}, from {whose}."


def _failing_claim(findings: Iterable[AuditFinding]) -> str:
    broken = [finding.name for finding in findings if not finding.held]
    return f"This evidence does not show that nothing undeclared crossed. What did not hold: {', '.join(broken)}."
