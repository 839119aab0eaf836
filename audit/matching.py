"""What arrived and what was sent -> pairs, and what is left over on either side."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from audit.evidence import ProbeSending
from client_service.boundary.call_attempts import Attempt
from client_service.boundary.secure_bodies import MESSAGES
from shared.protocol.schemas import ArrivalOut

Source = Literal["ledger", "probes"]
SUCCESS = 300  # the first HTTP status that is none
LEAST_REFUSED = 400  # the HTTP status from which on an answer is a refusal
CUT_OFF = (400, 408)  # answered where a body's end never came, or not in time
OWN_MISTAKE = 500  # the first HTTP status of an aggregator that itself failed
FROM_BETWEEN = (502, 504)  # a proxy says so, of an answer that it did not get


@dataclass(frozen=True)
class ReportedBody:
    """One body that left, as its sender reports it.

    `status` is None where the sender received no answer, `nonce` where the ledger does not record it; `attempt`: the
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
    """`outside`: arrived without a sending; `unseen`: reported as accepted, without an arrival; `lost`: reported as
    refused or unanswered, without an arrival."""

    pairs: tuple[tuple[ArrivalOut, ReportedBody], ...]
    outside: tuple[ArrivalOut, ...]
    unseen: tuple[ReportedBody, ...]
    lost: tuple[ReportedBody, ...]

    def refused_from(self, source: Source) -> list[ArrivalOut]:
        """The refused arrivals that are paired with a sending of this source."""
        return [arrival for arrival, sending in self.pairs if sending.source == source and is_refused(arrival)]


def is_refused(arrival: ArrivalOut) -> bool:
    """Whether the aggregator answered with a client or server error."""
    return arrival.status >= LEAST_REFUSED


def bodies_from_ledger(attempts: Iterable[Attempt]) -> list[ReportedBody]:
    """The calls of a ledger that have a body, as reported bodies."""
    with_body = (attempt for attempt in attempts if attempt.call in ("join", "update", *MESSAGES))
    return [_reported_body("ledger", attempt, attempt.nonce, attempt) for attempt in with_body]


def bodies_from_probes(sent: Iterable[ProbeSending]) -> list[ReportedBody]:
    """The sendings of probes that were refused or not answered. All are meant to be refused: an accepted one accounts
    for nothing."""
    bodies = (_reported_body("probes", sending) for sending in sent)
    return [body for body in bodies if not body.is_accepted]


def _reported_body(
    source: Source, record: Attempt | ProbeSending, nonce: str | None = None, attempt: Attempt | None = None
) -> ReportedBody:
    content = record.bytes, record.sha256, record.status
    return ReportedBody(source, record.call, record.run, record.round, *content, nonce, attempt)


KEYS = ("request", "whole", "place")  # what two records of one body may agree in, the most specific first


def match_bodies(arrivals: Sequence[ArrivalOut], sendings: Sequence[ReportedBody]) -> MatchedBodies:
    """Pair each arrival of one client with one of its sendings, those that agree in most fields first.

    A body that was refused unread, or was cut off, arrives with fewer bytes than were sent. A body that was read to its
    end must be the very one that the sender reports.
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
    """The fields in which an arrival and a sending must agree. Lengths are in bytes, digests are sha256."""
    content = (body.size, body.digest) if isinstance(body, ArrivalOut) else (body.bytes, body.sha256)
    fields = {"place": (), "whole": content, "request": (*content, body.nonce)}[key]
    return body.call, body.run, body.round, *fields, *((body.status,) if by_status else ())


def _may_pair(sending: ReportedBody, key: str, *, by_status: bool) -> bool:
    """Whether a sending may be paired by this key.

    By the request only where the ledger tells its nonce. By another status than the sender heard only where the sender
    heard of no success: the answer was lost, or somebody on the way gave another. By the place alone and another status
    only where the sender heard nothing of the aggregator.
    """
    if key == "request" and sending.nonce is None:
        return False
    if by_status:
        return True
    return sending.status in (None, *FROM_BETWEEN) if key == "place" else not sending.is_accepted


def _pair_by_key(
    arrivals: list[ArrivalOut], sendings: list[ReportedBody], key: str, *, by_status: bool
) -> tuple[list[tuple[ArrivalOut, ReportedBody]], list[ArrivalOut], list[ReportedBody]]:
    """The pairs with equal keys, and the rest of both."""
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
    """The very body; or, where that is what the answer says, none of it or a piece of it.

    What the probes send is meant to be refused. Of a question without a body its answer alone is known.
    """
    whole = (arrival.digest, arrival.size) == (sending.sha256, sending.bytes)
    if not is_refused(arrival):
        return whole and sending.source == "ledger"
    if whole:
        return arrival.size > 0 or sending.status in (None, arrival.status)
    broken = arrival.status in CUT_OFF or arrival.status >= OWN_MISTAKE
    return arrival.size < sending.bytes and (arrival.size == 0 or broken)
