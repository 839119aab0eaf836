"""Compares ledgers with the aggregator's own record: what was sent, and what arrived."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Literal

from audit.checks.findings import AuditFinding, make_finding
from audit.evidence.case import AuditCase, AuditedClient
from audit.evidence.evidence import ProbeSending
from client_service.boundary.call_attempts import Attempt
from client_service.boundary.secure_bodies import MESSAGES
from shared.method.declaration import Declaration
from shared.protocol.schemas import ArrivalOut, ParticipantOut
from shared.words import count_noun

Source = Literal["ledger", "probes"]
SUCCESS = 300  # a lower HTTP status is a success
LEAST_REFUSED = 400  # the HTTP status from which on an answer is a refusal
CUT_OFF = (400, 408)  # answered where a body's end never came, or not in time
SERVER_ERROR = 500  # the first HTTP status of an aggregator that itself failed
PROXY_ERRORS = (502, 504)  # statuses of a proxy that got no answer


@dataclass(frozen=True)
class ReportedBody:
    """Body that left, as its sender reports it.

    status: None if the sender received no answer. nonce: None if the ledger does not record it. attempt: the
    ledger's whole entry.
    """

    source: Source
    call: str
    run: str | None
    round: int | None
    bytes: int
    sha256: str
    status: int | None
    nonce: str | None = None
    attempt: Attempt | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the sender received a success."""
        return self.status is not None and self.status < SUCCESS


@dataclass(frozen=True)
class MatchedBodies:
    """Arrivals of a client matched with its reported bodies.

    outside: arrived without a report. unseen: reported as accepted, without an arrival. lost: reported as refused or
    unanswered, without an arrival.
    """

    pairs: tuple[tuple[ArrivalOut, ReportedBody], ...]
    outside: tuple[ArrivalOut, ...]
    unseen: tuple[ReportedBody, ...]
    lost: tuple[ReportedBody, ...]

    def refused_from(self, source: Source) -> list[ArrivalOut]:
        """Lists the refused arrivals that match a report of this source."""
        return [arrival for arrival, sending in self.pairs if sending.source == source and is_refused(arrival)]


def is_refused(arrival: ArrivalOut) -> bool:
    """Tells whether the aggregator answered with a client or server error."""
    return arrival.status >= LEAST_REFUSED


def bodies_from_ledger(attempts: Iterable[Attempt]) -> list[ReportedBody]:
    """Lists the calls of a ledger that have a body."""
    with_body = (attempt for attempt in attempts if attempt.call in ("join", "update", *MESSAGES))
    return [_reported_body("ledger", attempt, attempt.nonce, attempt) for attempt in with_body]


def bodies_from_probes(sent: Iterable[ProbeSending]) -> list[ReportedBody]:
    """Lists the probes' bodies that were refused or not answered.

    All are meant to be refused: an accepted one accounts for nothing.
    """
    bodies = (_reported_body("probes", sending) for sending in sent)
    return [body for body in bodies if not body.is_accepted]


def _reported_body(
    source: Source, record: Attempt | ProbeSending, nonce: str | None = None, attempt: Attempt | None = None
) -> ReportedBody:
    content = record.bytes, record.sha256, record.status
    return ReportedBody(source, record.call, record.run, record.round, *content, nonce, attempt)


KEYS = ("request", "whole", "place")  # what two records of one body may agree in, the most specific first


def match_bodies(arrivals: Sequence[ArrivalOut], sendings: Sequence[ReportedBody]) -> MatchedBodies:
    """Pairs each arrival of a client with a report, the most alike first.

    A body that was refused unread, or was cut off, arrives with fewer bytes than were sent. A body that was read to
    its end must be the very one that the sender reports.
    """
    unpaired, unmatched = list(arrivals), list(sendings)
    pairs: list[tuple[ArrivalOut, ReportedBody]] = []
    for key, by_status in product(KEYS, (True, False)):
        matches, unpaired, unmatched = _pair_by_key(unpaired, unmatched, key, by_status=by_status)
        pairs += matches
    reported = [sending for sending in unmatched if sending.source == "ledger"]
    accepted = tuple(sending for sending in reported if sending.is_accepted)
    lost = tuple(sending for sending in reported if not sending.is_accepted)
    return MatchedBodies(tuple(pairs), tuple(unpaired), accepted, lost)


def _body_key(body: ArrivalOut | ReportedBody, key: str, *, by_status: bool) -> Hashable:
    """Returns the fields in which an arrival and a report must agree.

    Lengths are in bytes, digests are sha256.
    """
    content = (body.size, body.digest) if isinstance(body, ArrivalOut) else (body.bytes, body.sha256)
    fields = {"place": (), "whole": content, "request": (*content, body.nonce)}[key]
    return body.call, body.run, body.round, *fields, *((body.status,) if by_status else ())


def _may_pair(sending: ReportedBody, key: str, *, by_status: bool) -> bool:
    """Tells whether a report may be paired by this key.

    By the request only where the ledger has its nonce. By another status than the sender received only where it
    received no success: the answer was lost, or a proxy gave another. By the place alone and another status only
    where the sender received nothing of the aggregator.
    """
    if key == "request" and sending.nonce is None:
        return False
    if by_status:
        return True
    return sending.status in (None, *PROXY_ERRORS) if key == "place" else not sending.is_accepted


def _pair_by_key(
    arrivals: list[ArrivalOut], sendings: list[ReportedBody], key: str, *, by_status: bool
) -> tuple[list[tuple[ArrivalOut, ReportedBody]], list[ArrivalOut], list[ReportedBody]]:
    """Returns the pairs with equal keys, and the rest of both."""
    waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, sending in enumerate(sendings):
        if _may_pair(sending, key, by_status=by_status):
            waiting[_body_key(sending, key, by_status=by_status)].append(place)
    pairs, left, taken = [], [], set()
    for arrival in arrivals:
        places = waiting.get(_body_key(arrival, key, by_status=by_status), deque())
        if places and _could_match(arrival, sendings[places[0]]):
            taken.add(places[0])
            pairs.append((arrival, sendings[places.popleft()]))
        else:
            left.append(arrival)
    return pairs, left, [sending for place, sending in enumerate(sendings) if place not in taken]


def _could_match(arrival: ArrivalOut, sending: ReportedBody) -> bool:
    """Tells whether an arrival may be all or part of a reported body.

    A body of a probe must not have been accepted. A call without a body is compared by the status of its answer.
    """
    whole = (arrival.digest, arrival.size) == (sending.sha256, sending.bytes)
    if not is_refused(arrival):
        return whole and sending.source == "ledger"
    if whole:
        return arrival.size > 0 or sending.status in (None, arrival.status)
    broken = arrival.status in CUT_OFF or arrival.status >= SERVER_ERROR
    return arrival.size < sending.bytes and (arrival.size == 0 or broken)


MOST_REFUSED = 1000  # refusals of one client that an aggregator records; beyond them it only counts
NOT_AS_DECLARED = (413, 415, 422)  # too large, of another media type, of another form
NOT_ON_LEDGER = "not on the ledger"
NO_RECORD = "no record of the aggregator to compare with"
Matches = Mapping[str, MatchedBodies]


def match_arrivals(case: AuditCase) -> Matches:
    """Matches, for each client, what arrived with what ledger and probes report."""
    matches = {}
    for name, client in case.clients.items():
        sendings = bodies_from_ledger(client.attempts) + bodies_from_probes(case.probe_sendings[name])
        matches[name] = match_bodies([arrival for arrival in case.arrivals if arrival.client == name], sendings)
    return matches


def check_declarations(case: AuditCase) -> AuditFinding:
    """Checks that every client's declaration is the aggregator's."""
    ours = None if case.aggregator is None else case.aggregator.declaration
    faults = [f"{name}: another declaration" for name, client in case.clients.items() if client.declaration != ours]
    return make_finding(
        "declaration",
        "every client's declaration is the aggregator's",
        "nothing" if ours is None else f"{_describe(ours)} at each of them",
        [NO_RECORD] if ours is None else faults,
    )


def _describe(declaration: Declaration) -> str:
    reports = f", {len(declaration.reports)} reports that only go up" if declaration.reports else ""
    reports += f", {len(declaration.broadcasts)} that only come down" if declaration.broadcasts else ""
    words = f"{len(declaration.tensors)} tensors{reports} and {len(declaration.scalars)} scalars"
    summed = sum(len(one.tensors) for one in declaration.sums.values())
    return f"{words}, and {summed} tensors of sums" if summed else words


def check_receipts(case: AuditCase) -> AuditFinding:
    """Checks that every accepted update has a matching receipt and stored body."""
    held = case.held_updates
    total = sum(attempt.receipt is not None for client in case.clients.values() for attempt in client.attempts)
    faults = (
        f"{name}, {fault}" for name, client in case.clients.items() for fault in _receipt_faults(name, client, held)
    )
    return make_finding(
        "receipts",
        "every accepted update has a receipt for the body that left, and the aggregator holds the same",
        f"{count_noun(total, 'receipt')}, each the same on both sides",
        [NO_RECORD] if case.aggregator is None else faults,
    )


def _receipt_faults(
    name: str, client: AuditedClient, held: Mapping[tuple[str, int, str], ParticipantOut]
) -> Iterator[str]:
    for attempt in client.attempts_of("update"):
        where = f"{attempt.run} round {attempt.round}"
        if attempt.receipt is None:
            if attempt.status is not None and attempt.status < SUCCESS:
                yield f"{where}: accepted without a receipt"
            continue
        if not _receipt_matches(name, attempt):
            yield f"{where}: a receipt for something else than what left"
        there = held.get((str(attempt.run), attempt.round or 0, name))
        if there is None:
            yield f"{where}: the aggregator holds nothing"
        elif (there.digest, there.size) != (attempt.sha256, attempt.bytes):
            yield f"{where}: the aggregator holds another body"


def _receipt_matches(name: str, attempt: Attempt) -> bool:
    receipt = attempt.receipt or {}
    left = {"client": name, "run": attempt.run, "round": attempt.round, "digest": attempt.sha256, "size": attempt.bytes}
    return {field: receipt.get(field) for field in left} == left


def check_arrivals(case: AuditCase, matches: Matches) -> AuditFinding:
    """Checks that every body that reached the aggregator is reported by ledger or probe."""
    refusals = sum(len(matched.refused_from("probes")) for matched in matches.values())
    arrived = sum(len(matched.pairs) for matched in matches.values()) - refusals
    return make_finding(
        "arrivals",
        "every body that arrived is on a ledger or reported by a probe",
        f"{count_noun(arrived, 'body', 'bodies')} on the ledgers, {refusals:,} sent by the probes and refused",
        [NO_RECORD] if case.aggregator is None else _unrecorded_bodies(case, matches),
    )


def _unrecorded_bodies(case: AuditCase, matches: Matches) -> list[str]:
    """Lists arrivals and stored updates that no ledger records, each once."""
    outside = Counter(
        f"{name}, {describe_arrival(arrival)}" for name, matched in matches.items() for arrival in matched.outside
    )
    without_evidence = (arrival for arrival in case.arrivals if arrival.client not in case.clients)
    without_client = Counter(f"{arrival.client}, {describe_arrival(arrival)}" for arrival in without_evidence)
    times = outside | Counter(set(_updates_without_entry(case))) | without_client
    return [f"{what}{f', {count} times' if count > 1 else ''}: {NOT_ON_LEDGER}" for what, count in times.items()]


def _updates_without_entry(case: AuditCase) -> Iterator[str]:
    """Yields updates that the aggregator holds and the ledger lacks.

    To cut off a ledger's end does not remove these.
    """
    left = {
        name: {(attempt.run, attempt.round, attempt.sha256, attempt.bytes) for attempt in client.attempts_of("update")}
        for name, client in case.clients.items()
    }
    for (run, number, name), held in case.held_updates.items():
        if name in left and (run, number, held.digest, held.size) not in left[name]:
            yield f"{name}, update of {run} round {number}, accepted"


def describe_arrival(arrival: ArrivalOut) -> str:
    """Describes an arrival by call, round and answer."""
    outcome = f"refused with {arrival.status}" if is_refused(arrival) else "accepted"
    return f"{_describe_place(arrival)}, {outcome}"


def _describe_place(body: ArrivalOut | ReportedBody) -> str:
    return body.call if body.run is None else f"{body.call} of {body.run} round {body.round}"


def check_nonces(matches: Matches) -> AuditFinding:
    """Checks that every body was signed by its ledger entry, at the entry's second.

    A ledger that was written anew has other entries, and a chosen time could carry data.
    """
    pairs = {name: [pair for pair in matched.pairs if _both_have_nonce(*pair)] for name, matched in matches.items()}
    return make_finding(
        "entries",
        "every body that arrived was signed with the nonce of its ledger entry",
        f"{count_noun(sum(map(len, pairs.values())), 'body', 'bodies')} signed by their entries",
        (
            f"{name}, {describe_arrival(arrival)}: {fault}"
            for name, signed in pairs.items()
            for arrival, sending in signed
            if (fault := _signing_fault(arrival, sending)) is not None
        ),
    )


def _signing_fault(arrival: ArrivalOut, sending: ReportedBody) -> str | None:
    if arrival.nonce != sending.nonce:
        return "signed by another entry than the ledger has"
    head, attempt = arrival.head, sending.attempt
    if head is None or head.signature is None or attempt is None or attempt.created is None:
        return None  # one of the two is of an earlier version
    if head.signature.created == attempt.created == _second_of(attempt.time):
        return None
    return "signed at another second than its entry in the ledger says"


def _second_of(time: str) -> int | None:
    try:
        return int(datetime.fromisoformat(time).timestamp())
    except ValueError:
        return None


def _both_have_nonce(arrival: ArrivalOut, sending: ReportedBody) -> bool:
    return sending.source == "ledger" and arrival.nonce is not None and sending.nonce is not None


def check_acceptances(case: AuditCase, matches: Matches) -> AuditFinding:
    """Checks that the aggregator's record has every body that a ledger calls accepted."""
    lost = sum(len(matched.lost) for matched in matches.values())
    faults = [
        f"{name}, {_describe_place(body)}: accepted according to the ledger, but not on the aggregator's record"
        for name, matched in matches.items()
        for body in matched.unseen
    ]
    return make_finding(
        "record",
        "the aggregator's record has every body that a ledger calls accepted",
        "all of them" + (f"; {count_noun(lost, 'other')} did not arrive" if lost else ""),
        [NO_RECORD] if case.aggregator is None else faults,
    )


def check_undeclared(matches: Matches) -> AuditFinding:
    """Checks that no update on a ledger was refused as undeclared.

    No gate lets such a body out: a ledger with one is false.
    """
    undeclared = {
        name: [arrival for arrival in matched.refused_from("ledger") if _is_undeclared(arrival)]
        for name, matched in matches.items()
    }
    return make_finding(
        "as declared",
        "no update on a ledger was refused as undeclared",
        "none was",
        (f"{name}, {describe_arrival(arrival)}" for name, arrivals in undeclared.items() for arrival in arrivals),
    )


def _is_undeclared(arrival: ArrivalOut) -> bool:
    return arrival.call in ("update", *MESSAGES) and arrival.status in NOT_AS_DECLARED


def check_refusals(case: AuditCase) -> AuditFinding:
    """Checks that each client has fewer refusals than the aggregator records."""
    counts = Counter(arrival.client for arrival in case.arrivals if is_refused(arrival))
    most = max(counts.values(), default=0)
    return make_finding(
        "refusals",
        f"fewer than {MOST_REFUSED:,} refusals of each client, so that all are on record",
        f"at most {most:,} of one client",
        (
            f"{name}: {count:,}, and possibly more that were not recorded"
            for name, count in counts.items()
            if count >= MOST_REFUSED
        ),
    )
