"""What arrived and what was sent -> pairs, and what is left over on either side."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from audit.evidence import Sent
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
class Sending:
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
    def accepted(self) -> bool:
        return self.status is not None and self.status < SUCCESS


@dataclass(frozen=True)
class Matched:
    """`outside`: arrived, and sent by nobody; `unseen`: said to be accepted, and never arrived."""

    pairs: tuple[tuple[ArrivalOut, Sending], ...]
    outside: tuple[ArrivalOut, ...]
    unseen: tuple[Sending, ...]
    lost: tuple[Sending, ...]

    def refused(self, source: Source) -> list[ArrivalOut]:
        return [arrival for arrival, sending in self.pairs if sending.source == source and refused(arrival)]


def refused(arrival: ArrivalOut) -> bool:
    return arrival.status >= LEAST_REFUSED


def from_ledger(attempts: Iterable[Attempt]) -> list[Sending]:
    return [
        Sending("ledger", one.call, one.run, one.round, one.bytes, one.sha256, one.status, one.nonce, one)
        for one in attempts
        if one.call in ("join", "update", *MESSAGES)
    ]


def from_probes(sent: Iterable[Sent]) -> list[Sending]:
    """All of them are meant to be refused: one that was accepted accounts for nothing."""
    told = [Sending("probes", one.call, one.run, one.round, one.bytes, one.sha256, one.status) for one in sent]
    return [one for one in told if not one.accepted]


ArrivalKey = Callable[[ArrivalOut], Hashable]
SendingKey = Callable[[Sending], Hashable | None]


def match(arrivals: Sequence[ArrivalOut], sendings: Sequence[Sending]) -> Matched:
    """Pair each arrival of one client with one of its sendings, those that agree most first.

    A body that was refused unread, or was cut off, arrives with fewer bytes than were sent. One that was read to its
    end must be the very one that somebody says to have sent.
    """
    left, unsaid = list(arrivals), list(sendings)
    pairs: list[tuple[ArrivalOut, Sending]] = []
    for of_arrival, of_sending in (
        (_request_answered, _request_and_answer),
        (_request, _request_not_accepted),
        (_whole_answered, _whole_and_answer),
        (_whole, _whole_not_accepted),
        (_place_answered, _place_and_answer),
        (_place, _place_unheard),
    ):
        found, left, unsaid = _pair(left, unsaid, of_arrival, of_sending)
        pairs += found
    ours = [one for one in unsaid if one.source == "ledger"]
    unseen, lost = [one for one in ours if one.accepted], [one for one in ours if not one.accepted]
    return Matched(tuple(pairs), tuple(left), tuple(unseen), tuple(lost))


def _place(one: ArrivalOut | Sending) -> Hashable:
    return one.call, one.run, one.round


def _whole(one: ArrivalOut) -> Hashable:
    return _place(one), one.size, one.digest


def _request(one: ArrivalOut) -> Hashable:
    return _whole(one), one.nonce


def _request_answered(one: ArrivalOut) -> Hashable:
    return _request(one), one.status


def _request_and_answer(one: Sending) -> Hashable | None:
    """The very request, where its ledger tells the nonce."""
    return None if one.nonce is None else (((_place(one), one.bytes, one.sha256), one.nonce), one.status)


def _request_not_accepted(one: Sending) -> Hashable | None:
    return None if one.nonce is None or one.accepted else ((_place(one), one.bytes, one.sha256), one.nonce)


def _whole_answered(one: ArrivalOut) -> Hashable:
    return _whole(one), one.status


def _place_answered(one: ArrivalOut) -> Hashable:
    return _place(one), one.status


def _whole_and_answer(one: Sending) -> Hashable:
    return (_place(one), one.bytes, one.sha256), one.status


def _whole_not_accepted(one: Sending) -> Hashable | None:
    """The answer was lost, or somebody on the way gave another."""
    return None if one.accepted else (_place(one), one.bytes, one.sha256)


def _place_and_answer(one: Sending) -> Hashable:
    return _place(one), one.status


def _place_unheard(one: Sending) -> Hashable | None:
    return _place(one) if one.status in (None, *FROM_BETWEEN) else None


def _pair(
    arrivals: list[ArrivalOut], sendings: list[Sending], of_arrival: ArrivalKey, of_sending: SendingKey
) -> tuple[list[tuple[ArrivalOut, Sending]], list[ArrivalOut], list[Sending]]:
    """The pairs with equal keys, and the rest of both. None is no key."""
    waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, sending in enumerate(sendings):
        if (key := of_sending(sending)) is not None:
            waiting[key].append(place)
    pairs, left, taken = [], [], set()
    for arrival in arrivals:
        places = waiting.get(of_arrival(arrival), deque())
        if places and _could_be(arrival, sendings[places[0]]):
            taken.add(places[0])
            pairs.append((arrival, sendings[places.popleft()]))
        else:
            left.append(arrival)
    return pairs, left, [one for place, one in enumerate(sendings) if place not in taken]


def _could_be(arrival: ArrivalOut, sending: Sending) -> bool:
    """The very body; or, where that is what the answer says, none of it or a piece of it.

    What the probes send is meant to be refused. Of a question without a body its answer alone is known.
    """
    whole = (arrival.digest, arrival.size) == (sending.sha256, sending.bytes)
    if not refused(arrival):
        return whole and sending.source == "ledger"
    if whole:
        return arrival.size > 0 or sending.status in (None, arrival.status)
    broken = arrival.status in CUT_OFF or arrival.status >= OWN_MISTAKE
    return arrival.size < sending.bytes and (arrival.size == 0 or broken)
