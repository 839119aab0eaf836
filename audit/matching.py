"""What arrived and what was sent -> pairs, and what is left over on either side."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from audit.evidence import ProbeSending
from client_service.boundary.crossings import Attempt
from client_service.boundary.masked import MESSAGES
from shared.protocol.schemas import ArrivalOut

Source = Literal["ledger", "probes"]
SUCCESS = 300  # the first HTTP status that is none
LEAST_REFUSED = 400  # the HTTP status from which on an answer is a refusal
CUT_OFF = (400, 408)  # answered where a body's end never came, or not in time
OWN_MISTAKE = 500  # the first HTTP status of an aggregator that itself failed
FROM_BETWEEN = (502, 504)  # a proxy says so, of an answer that it did not get


@dataclass(frozen=True)
class ReportedBody:
    """One body that left, as its sender tells it. `status` is None where it heard of no answer, `nonce` where the
    ledger does not tell it; `attempt`: what else the ledger says."""

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
        return self.status is not None and self.status < SUCCESS


@dataclass(frozen=True)
class MatchedBodies:
    """`outside`: arrived, and sent by nobody; `unseen`: said to be accepted, and never arrived."""

    pairs: tuple[tuple[ArrivalOut, ReportedBody], ...]
    outside: tuple[ArrivalOut, ...]
    unseen: tuple[ReportedBody, ...]
    lost: tuple[ReportedBody, ...]

    def refused_from(self, source: Source) -> list[ArrivalOut]:
        return [arrival for arrival, sending in self.pairs if sending.source == source and is_refused(arrival)]


def is_refused(arrival: ArrivalOut) -> bool:
    return arrival.status >= LEAST_REFUSED


def bodies_from_ledger(attempts: Iterable[Attempt]) -> list[ReportedBody]:
    return [
        ReportedBody("ledger", one.call, one.run, one.round, one.bytes, one.sha256, one.status, one.nonce, one)
        for one in attempts
        if one.call in ("join", "update", *MESSAGES)
    ]


def bodies_from_probes(sent: Iterable[ProbeSending]) -> list[ReportedBody]:
    """All of them are meant to be refused: one that was accepted accounts for nothing."""
    told = [ReportedBody("probes", one.call, one.run, one.round, one.bytes, one.sha256, one.status) for one in sent]
    return [one for one in told if not one.is_accepted]


ArrivalKey = Callable[[ArrivalOut], Hashable]
SendingKey = Callable[[ReportedBody], Hashable | None]


def match_bodies(arrivals: Sequence[ArrivalOut], sendings: Sequence[ReportedBody]) -> MatchedBodies:
    """Pair each arrival of one client with one of its sendings, those that agree most first.

    A body that was refused unread, or was cut off, arrives with fewer bytes than were sent. One that was read to its
    end must be the very one that somebody says to have sent.
    """
    left, unsaid = list(arrivals), list(sendings)
    pairs: list[tuple[ArrivalOut, ReportedBody]] = []
    for of_arrival, of_sending in (
        (_answered_request_key, _request_and_answer_key),
        (_request_key, _unaccepted_request_key),
        (_answered_whole_key, _whole_and_answer_key),
        (_whole_key, _unaccepted_whole_key),
        (_answered_place_key, _place_and_answer_key),
        (_place_key, _unheard_place_key),
    ):
        found, left, unsaid = _pair_by_key(left, unsaid, of_arrival, of_sending)
        pairs += found
    ours = [one for one in unsaid if one.source == "ledger"]
    unseen, lost = [one for one in ours if one.is_accepted], [one for one in ours if not one.is_accepted]
    return MatchedBodies(tuple(pairs), tuple(left), tuple(unseen), tuple(lost))


def _place_key(one: ArrivalOut | ReportedBody) -> Hashable:
    return one.call, one.run, one.round


def _whole_key(one: ArrivalOut) -> Hashable:
    return _place_key(one), one.size, one.digest


def _request_key(one: ArrivalOut) -> Hashable:
    return _whole_key(one), one.nonce


def _answered_request_key(one: ArrivalOut) -> Hashable:
    return _request_key(one), one.status


def _request_and_answer_key(one: ReportedBody) -> Hashable | None:
    """The very request, where its ledger tells the nonce."""
    return None if one.nonce is None else (((_place_key(one), one.bytes, one.sha256), one.nonce), one.status)


def _unaccepted_request_key(one: ReportedBody) -> Hashable | None:
    return None if one.nonce is None or one.is_accepted else ((_place_key(one), one.bytes, one.sha256), one.nonce)


def _answered_whole_key(one: ArrivalOut) -> Hashable:
    return _whole_key(one), one.status


def _answered_place_key(one: ArrivalOut) -> Hashable:
    return _place_key(one), one.status


def _whole_and_answer_key(one: ReportedBody) -> Hashable:
    return (_place_key(one), one.bytes, one.sha256), one.status


def _unaccepted_whole_key(one: ReportedBody) -> Hashable | None:
    """The answer was lost, or somebody on the way gave another."""
    return None if one.is_accepted else (_place_key(one), one.bytes, one.sha256)


def _place_and_answer_key(one: ReportedBody) -> Hashable:
    return _place_key(one), one.status


def _unheard_place_key(one: ReportedBody) -> Hashable | None:
    return _place_key(one) if one.status in (None, *FROM_BETWEEN) else None


def _pair_by_key(
    arrivals: list[ArrivalOut], sendings: list[ReportedBody], of_arrival: ArrivalKey, of_sending: SendingKey
) -> tuple[list[tuple[ArrivalOut, ReportedBody]], list[ArrivalOut], list[ReportedBody]]:
    """The pairs with equal keys, and the rest of both. None is no key."""
    waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, sending in enumerate(sendings):
        if (key := of_sending(sending)) is not None:
            waiting[key].append(place)
    pairs, left, taken = [], [], set()
    for arrival in arrivals:
        places = waiting.get(of_arrival(arrival), deque())
        if places and _could_match(arrival, sendings[places[0]]):
            taken.add(places[0])
            pairs.append((arrival, sendings[places.popleft()]))
        else:
            left.append(arrival)
    return pairs, left, [one for place, one in enumerate(sendings) if place not in taken]


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
